"""DeepSeek's prompt formats and API protocols: requests to token ids, model output to responses."""
