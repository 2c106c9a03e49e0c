"""The conformance suite as pytest modules, one for each level.

pytest --pyargs deepinfer_core.testing.conformance --deepinfer-plugin NAME
"""
