"""CPU kernels for DeepInfer, compiled when the package is installed. See README.md."""
