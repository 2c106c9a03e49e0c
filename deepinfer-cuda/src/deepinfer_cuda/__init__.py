"""NVIDIA GPUs for DeepInfer. Importing this package touches no device."""
