"""Quantised checkpoints, one scheme per file: sources that give numbers where files hold codes."""
