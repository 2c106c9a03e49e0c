"""DSpark of DeepSeek-V4.1.

It reads the streams that enter the target's layers. Its hyper-connections lag by a sublayer, and
those of the last stage collapse the streams. DeepSeek-V4.1 (arXiv:2609.19969).
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from deepinfer_core.models.deepseek_v4_config import V4Config, drafter_layers
from deepinfer_core.models.deepseek_v41_config import SharedCaches, V41Config
from deepinfer_core.models.drafters.dspark import Dspark
from deepinfer_core.models.drafters.dspark_layers import BlockAttention
from deepinfer_core.models.layers.hybrid_attention import WindowAttention
from deepinfer_core.models.layers.v41_layer import V41Layer
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import ForwardBatch


class DsparkV41Layer(V41Layer):
    """A layer whose tokens are those of blocks."""

    @staticmethod
    def build_attention(
        ops: OpTable, config: V41Config, layer: int, caches: SharedCaches, *, dtype: str
    ) -> WindowAttention:
        return BlockAttention(ops, config, caches.window, dtype=dtype)


class DsparkV41(Dspark):
    """Args: see `Dspark`."""

    def __init__(self, config: V41Config, ops: OpTable, *, dtype: str, first_cache: int) -> None:
        super().__init__(config, ops, dtype=dtype, first_cache=first_cache)
        self.num_streams = config.hyper.num_streams
        self.collapse = ops.bind(
            "hc.collapse",
            dtype=dtype,
            role="draft.hc",
            hc_mult=self.num_streams,
            hidden_size=config.hidden_size,
        )

    @staticmethod
    def build_stage(
        ops: OpTable, config: V4Config, stage: int, cache: int, *, dtype: str
    ) -> nn.Module:
        layers = replace(drafter_layers(cast(V41Config, config)), engram=None)
        return DsparkV41Layer(ops, layers, stage, SharedCaches(cache, None), dtype=dtype)

    def run_stages(self, x: Tensor, blocks: ForwardBatch, cos_sin: Tensor) -> Tensor:
        streams = x.unsqueeze(1).repeat(1, self.num_streams, 1)
        pre = x.new_zeros(len(x), self.num_streams, dtype=torch.float32)
        pre[:, 0] = 1.0  # all streams are equal
        for stage in self.stages:
            streams, pre = stage(streams, pre, blocks, cos_sin)
        hidden_states: Tensor = self.collapse(streams, pre)
        return hidden_states
