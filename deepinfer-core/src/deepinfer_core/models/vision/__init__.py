"""The vision tower of DeepSeek-V4.1: from pixels to rows that stand in for token embeddings."""
