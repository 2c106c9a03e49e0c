"""What the operators compute, with their signatures, and refuse what their documents refuse."""
