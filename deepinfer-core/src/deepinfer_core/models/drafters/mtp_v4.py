"""The layer of DeepSeek-V4 that predicts a second token, as in the checkpoints of April 2026.

A window layer over residual streams, between those of the target and a head of its own. It has no
rotation scaling and routes its experts, whatever the target's first layers do.
"""

from __future__ import annotations

from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.deepseek_v4 import V4Layer
from deepinfer_core.models.deepseek_v4_config import LayerCaches, V4Config, drafter_layers
from deepinfer_core.models.drafters.interface import longest_position
from deepinfer_core.models.drafters.mtp import Mtp
from deepinfer_core.models.layers.hyper_connection import HyperHead
from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.rotary import RotaryTable
from deepinfer_core.models.stream_model import StreamModel
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class MtpV4Layer(V4Layer):
    """Streams and embedding, each behind a norm and projected, as the input of a window layer."""

    def __init__(self, ops: OpTable, config: V4Config, first_cache: int, *, dtype: str) -> None:
        super().__init__(ops, drafter_layers(config), 0, LayerCaches(first_cache), dtype=dtype)
        size, eps = config.hidden_size, config.norm_eps
        self.enorm = RMSNorm(ops, size, eps, dtype=dtype, role="draft.embed_norm")
        self.hnorm = RMSNorm(ops, size, eps, dtype=dtype, role="draft.hidden_norm")
        self.e_proj = Linear(ops, size, size, dtype=dtype, role="draft.embed")
        self.h_proj = Linear(ops, size, size, dtype=dtype, role="draft.hidden")
        self.hc_head = HyperHead(ops, config, dtype=dtype)
        self.norm = RMSNorm(ops, size, eps, dtype=dtype, role="draft.norm")

    def merge(self, streams: Tensor, embeddings: Tensor) -> Tensor:
        """[T, n, D] and [T, D] -> [T, n, D]."""
        hidden = self.h_proj(self.hnorm(streams.flatten(0, 1))).view_as(streams)
        merged: Tensor = hidden + self.e_proj(self.enorm(embeddings)).unsqueeze(1)
        return merged


class MtpV4(Mtp):
    """Reads the streams before the target's head, and gives such.

    Args and errors are those of `MtpV3`.
    """

    def __init__(self, config: V4Config, ops: OpTable, *, dtype: str, first_cache: int) -> None:
        if config.num_predict_layers != 1:
            raise ModelLoadError(
                f"num_nextn_predict_layers = {config.num_predict_layers}: a drafter has 1 layer"
            )
        super().__init__([config.window_kv(dtype)], num_drafts=1)
        self.layer = MtpV4Layer(ops, config, first_cache, dtype=dtype)
        self.rotary = RotaryTable(config.rope)

    def stored_name(self, name: str) -> str:
        return StreamModel.stored_name("mtp.0." + name.removeprefix("layer."))

    def is_redundant(self, name: str) -> bool:
        return not name.startswith("mtp.")

    def advance(self, features: Tensor, embeddings: Tensor, attention: AttentionBatch) -> Tensor:
        positions = attention.groups[0].positions
        cos_sin = self.rotary.cos_sin(longest_position(attention), positions.device)
        merged = self.layer.merge(features, embeddings)
        # No experts are looked up by token here.
        streams: Tensor = self.layer(merged, None, positions, cos_sin, attention)
        return streams

    def head_input(self, features: Tensor) -> Tensor:
        hidden_states: Tensor = self.layer.norm(self.layer.hc_head(features))
        return hidden_states
