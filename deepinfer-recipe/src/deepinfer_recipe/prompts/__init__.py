"""Prompt formats: a conversation to text and token ids, one file per format."""

from .encoding import PromptEncoding
from .pieces import RenderedPrompt
from .v4 import DeepseekV4Encoding
from .v41 import DeepseekV41Encoding

__all__ = ["DeepseekV4Encoding", "DeepseekV41Encoding", "PromptEncoding", "RenderedPrompt"]
