"""Benchmarks: how fast an engine is, beside what its machine and its GEMMs alone would allow.

Everything here looks at an engine from outside; nothing in the engine knows that it is measured.
"""
