"""DSpark of DeepSeek-V4, in the checkpoints of July 2026 and later.

Its stages are window layers as the target has them. They read the streams behind the target's
layers, and a head of their own collapses theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.deepseek_v4 import DeepseekV4, V4Layer
from deepinfer_core.models.deepseek_v4_config import LayerCaches, V4Config
from deepinfer_core.models.drafters.dspark import Dspark
from deepinfer_core.models.drafters.dspark_config import DsparkConfig
from deepinfer_core.models.drafters.dspark_layers import BlockAttention, ContextInput, DraftHead
from deepinfer_core.models.drafters.mtp_v4 import window_layers
from deepinfer_core.models.layers.hybrid_attention import WindowAttention
from deepinfer_core.models.layers.hyper_connection import HyperHead
from deepinfer_core.models.layers.rotary import RotaryTable
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch

MARKOV_NAMES = {"embed": "markov_w1", "head": "markov_w2"}


class DsparkV4Layer(V4Layer):
    """A layer whose tokens are those of blocks."""

    @staticmethod
    def build_attention(
        ops: OpTable, config: V4Config, layer: int, caches: LayerCaches, *, dtype: str
    ) -> WindowAttention:
        return BlockAttention(ops, config, caches.window, dtype=dtype)


class DsparkV4Head(DraftHead):
    """With the coefficients that collapse the streams of the last stage."""

    def __init__(self, ops: OpTable, config: V4Config, dspark: DsparkConfig, *, dtype: str) -> None:
        size, eps = config.hidden_size, config.norm_eps
        super().__init__(ops, dspark, size, config.vocab_size, eps, dtype=dtype)
        self.hc_head = HyperHead(ops, config, dtype=dtype)


class DsparkV4(Dspark):
    """Args: as of `MtpV3`; the configuration has DSpark."""

    def __init__(self, config: V4Config, ops: OpTable, *, dtype: str, first_cache: int) -> None:
        dspark = config.dspark
        if dspark is None:
            raise ValueError("a checkpoint without DSpark")
        dtype_bytes, window = getattr(torch, dtype).itemsize, config.window_size
        rows = LayerKV("window", 1, config.head_dim, dtype_bytes, window, num_planes=1)
        super().__init__(dspark, rows, RotaryTable(config.rope))
        num_features, size = len(dspark.target_layers), config.hidden_size
        self.context = ContextInput(ops, size, num_features, config.norm_eps, dtype=dtype)
        layers = window_layers(config, dspark.num_stages)
        moe = replace(
            layers.moe,
            num_experts=dspark.num_experts,
            num_experts_per_token=dspark.num_experts_per_token,
        )
        layers = replace(layers, moe=moe)
        self.stages = nn.ModuleList(
            DsparkV4Layer(ops, layers, stage, LayerCaches(first_cache + stage), dtype=dtype)
            for stage in range(dspark.num_stages)
        )
        self.head: DsparkV4Head = DsparkV4Head(ops, config, dspark, dtype=dtype)
        self.num_streams = config.hyper.num_streams

    def stored_name(self, name: str) -> str:
        name = re.sub(
            r"\.markov_head\.(\w+)\.",
            lambda match: f".markov_head.{MARKOV_NAMES[match[1]]}.",
            super().stored_name(name),
        )
        return DeepseekV4.stored_name(name)

    @property
    def attentions(self) -> Iterable[BlockAttention]:
        return [cast(BlockAttention, stage.attn) for stage in self.stages]

    def run_stages(
        self, x: Tensor, positions: Tensor, cos_sin: Tensor, attention: AttentionBatch
    ) -> Tensor:
        streams = x.unsqueeze(1).repeat(1, self.num_streams, 1)
        for stage in self.stages:
            streams = stage(streams, None, positions, cos_sin, attention)
        hidden_states: Tensor = self.head.hc_head(streams)
        return hidden_states
