"""Other libraries' kernels behind our ops, where they are installed. None was ever run here."""
