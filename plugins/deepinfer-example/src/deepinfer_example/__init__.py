"""The tutorial plugin of DeepInfer. See README.md."""
