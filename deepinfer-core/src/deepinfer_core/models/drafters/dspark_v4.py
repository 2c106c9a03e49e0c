"""DSpark of DeepSeek-V4, in the checkpoints of July 2026 and later.

It reads the streams behind the target's layers, and a head of its own collapses those of its last
stage.
"""

from __future__ import annotations

from torch import Tensor, nn

from deepinfer_core.models.deepseek_v4 import V4Layer
from deepinfer_core.models.deepseek_v4_config import LayerCaches, V4Config, drafter_layers
from deepinfer_core.models.drafters.dspark import Dspark
from deepinfer_core.models.drafters.dspark_layers import BlockAttention
from deepinfer_core.models.layers.hybrid_attention import WindowAttention
from deepinfer_core.models.layers.hyper_connection import HyperHead
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import ForwardBatch

MARKOV_NAMES = {"markov_head.embed.": "markov_w1.", "markov_head.head.": "markov_w2."}


class DsparkV4Layer(V4Layer):
    """A layer whose tokens are those of blocks."""

    @staticmethod
    def build_attention(
        ops: OpTable, config: V4Config, layer: int, caches: LayerCaches, *, dtype: str
    ) -> WindowAttention:
        return BlockAttention(ops, config, caches.window, dtype=dtype)


class DsparkV4(Dspark):
    """Args: see `Dspark`."""

    def __init__(self, config: V4Config, ops: OpTable, *, dtype: str, first_cache: int) -> None:
        super().__init__(config, ops, dtype=dtype, first_cache=first_cache)
        self.num_streams = config.hyper.num_streams
        self.hc_head = HyperHead(ops, config, dtype=dtype)

    @staticmethod
    def build_stage(
        ops: OpTable, config: V4Config, stage: int, cache: int, *, dtype: str
    ) -> nn.Module:
        return DsparkV4Layer(ops, drafter_layers(config), stage, LayerCaches(cache), dtype=dtype)

    def stored_name(self, name: str) -> str:
        name = super().stored_name(name)
        for ours, released in MARKOV_NAMES.items():
            name = name.replace(ours, f"markov_head.{released}")
        return name

    def run_stages(self, x: Tensor, blocks: ForwardBatch, cos_sin: Tensor) -> Tensor:
        streams = x.unsqueeze(1).repeat(1, self.num_streams, 1)
        for stage in self.stages:
            streams = stage(streams, None, blocks.positions, cos_sin, blocks.attention)
        hidden_states: Tensor = self.hc_head(streams)
        return hidden_states
