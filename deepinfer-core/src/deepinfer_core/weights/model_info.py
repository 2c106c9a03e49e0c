"""`ModelInfo`: what the engine and the text edge need to know of a checkpoint, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from deepinfer_core.models.decoder_config import DecoderConfig


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where the tokenizer and the chat template are."""

    kind: Literal["hf", "gguf"]
    """`hf`: a directory with `tokenizer.json`; `gguf`: a file with them in its metadata."""
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts of one checkpoint. Independent of the file format it came in."""

    architecture: str
    """As in `architectures` of a `config.json`, such as `LlamaForCausalLM`."""
    model_type: str
    config: DecoderConfig
    raw_config: Mapping[str, Any]
    """The checkpoint's own fields; GGUF metadata under their Hugging Face names."""
    eos_token_ids: tuple[int, ...]
    """Every id that ends a sequence, ascending."""
    bos_token_id: int | None
    dtype: str
    """The checkpoint's own: `float32`, `bfloat16` or `float16`; quantised files say bfloat16."""
    path: Path
    tokenizer_source: TokenizerSource
    fp8_block_size: tuple[int, int] | None = None
    """Rows and columns of an FP8 matrix that share a scale; None: nothing is FP8."""
    generation_defaults: Mapping[str, float | int] = field(default_factory=dict)
    """Names of `SamplingParams` -> the values that the checkpoint recommends."""

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_position(self) -> int:
        """Longest context in tokens."""
        return self.config.max_position
