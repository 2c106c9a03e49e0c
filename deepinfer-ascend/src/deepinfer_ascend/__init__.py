"""Ascend NPUs for DeepInfer, through the public plugin contract only."""
