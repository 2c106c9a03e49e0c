"""Triton kernels, one op per file; imported when an engine has chosen them."""
