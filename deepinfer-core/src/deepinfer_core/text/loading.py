"""`load_tokenizer`: from a path to a `Tokenizer`, whatever the path holds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.text.gguf_tokenizer import load_gguf_tokenizer
from deepinfer_core.text.hf_tokenizer import load_hf_tokenizer
from deepinfer_core.text.tokenizer import Tokenizer

TokenizerKind = Literal["hf", "gguf"]


def load_tokenizer(path: str | Path, *, kind: TokenizerKind | None = None) -> Tokenizer:
    """Load a tokenizer with its special tokens and chat templates.

    Args:
        path: a Hugging Face directory, a `tokenizer.json`, or a GGUF file.
        kind: `hf` or `gguf`; None tells by the path.

    Raises:
        ModelLoadError: there is none, it is corrupt, or of an unsupported type; says what to do.
    """
    path = Path(path)
    if not path.exists():
        raise ModelLoadError(f"no tokenizer: {path} does not exist")
    if kind is None:
        kind = "gguf" if path.suffix == ".gguf" else "hf"
    if kind == "gguf":
        return load_gguf_tokenizer(path)
    return load_hf_tokenizer(path.parent if path.is_file() else path)
