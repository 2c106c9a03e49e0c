"""`StreamModel`: what V4 and V4.1 have around layers with several residual streams."""

from __future__ import annotations

import re

from torch import Tensor

from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.deepseek_v4_config import V4Config
from deepinfer_core.models.layers.embedding import VocabMatrix
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.rotary import RotaryTable
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import ForwardBatch

RENAMED = (
    (re.compile(r"\bhc_(\w+)\.(fn|base|scale)$"), r"hc_\1_\2"),
    (re.compile(r"\.gate_proj\.(weight|scale)$"), r".w1.\1"),
    (re.compile(r"\.down_proj\.(weight|scale)$"), r".w2.\1"),
    (re.compile(r"\.up_proj\.(weight|scale)$"), r".w3.\1"),
    (re.compile(r"\.e_score_correction_bias$"), ".bias"),
    (re.compile(r"\.image_bias$"), ".bias_vl"),
)


class StreamModel(CausalModel):
    """Embedding, last norm, head and rotations. Args and errors are those of `CausalModel`."""

    _layer_kvs: list[LayerKV]

    def __init__(self, config: V4Config, ops: OpTable, *, dtype: str) -> None:
        super().__init__(config, ops, dtype=dtype)
        size = config.hidden_size
        self.embed = VocabMatrix(ops, config.vocab_size, size, dtype=dtype, role="embed")
        self.norm = RMSNorm(ops, size, config.norm_eps, dtype=dtype, role="final.norm")
        self.head = VocabMatrix(ops, config.vocab_size, size, dtype=dtype, role="lm_head")
        self.rotary = RotaryTable(config.rope)
        self.compress_rotary = RotaryTable(config.compress_rope)

    @staticmethod
    def stored_name(name: str) -> str:
        """The released name of a parameter."""
        for pattern, replacement in RENAMED:
            name = pattern.sub(replacement, name)
        return name

    def is_redundant(self, name: str) -> bool:
        """Whether a checkpoint tensor is of a layer that predicts further tokens."""
        return name.startswith("mtp.")

    @property
    def head_weight(self) -> Tensor:
        return self.head.weight

    def layer_kv(self) -> list[LayerKV]:
        """What each cache stores per token, as it was planned."""
        return self._layer_kvs

    def embed_ids(self, token_ids: Tensor) -> Tensor:
        """[N] int32 -> [N, C]."""
        embeddings: Tensor = self.embed(token_ids)
        return embeddings

    def rotations(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """cos and sin of layers that see their window alone, and of those that see rows."""
        longest = max((meta.max_seq_len for meta in batch.attention.groups), default=0)
        device = batch.positions.device
        return self.rotary.cos_sin(longest, device), self.compress_rotary.cos_sin(longest, device)
