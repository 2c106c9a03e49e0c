"""Ids <-> text, only at the edge: tokenizers, chat templates, streams of text, stop strings."""
