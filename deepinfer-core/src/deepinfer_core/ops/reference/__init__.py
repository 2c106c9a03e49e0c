"""Plain torch references: what every op means, quick enough for a laptop.

`<family>.py` holds the plain ones. `invariant_<family>.py` holds those whose rows do not depend
in a single bit on what else is in the batch, where the plain ones do. All work on any device.
They compute in float32, and in float64 for float64 inputs, which tests use as the truth.
"""
