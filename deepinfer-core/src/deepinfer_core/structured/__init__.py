"""Structured output: answers that belong to a JSON schema, a regular expression or a grammar."""
