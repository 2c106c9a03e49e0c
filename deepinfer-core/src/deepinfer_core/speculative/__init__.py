"""Speculative decoding: who guesses tokens, and how many guesses are worth a look."""
