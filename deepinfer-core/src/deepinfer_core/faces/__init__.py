"""The faces' common parts: prompts in, text out, and the one loop that drives the engine."""
