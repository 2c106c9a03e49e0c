"""The plain-run check: the same requests alone and under random combinations of features."""
