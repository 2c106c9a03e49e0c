"""Prompt formats: a conversation to text and token ids, one file per format."""

from .encoding import PromptEncoding
from .fim import encode_fim, render_fim
from .pieces import RenderedPrompt
from .v4 import DeepseekV4Encoding
from .v32 import DeepseekV32Encoding
from .v41 import DeepseekV41Encoding

__all__ = [
    "DeepseekV4Encoding",
    "DeepseekV32Encoding",
    "DeepseekV41Encoding",
    "PromptEncoding",
    "RenderedPrompt",
    "encode_fim",
    "render_fim",
]
