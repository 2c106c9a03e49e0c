"""The compressor of DeepSeek-V4: m tokens become one row, when the last of them has come.

DeepSeek-V4, sections 2.3.1 and 2.3.2. Raw values and gates of the open group wait in a window
cache, so that chunks, rejected tokens and prefix hits need no state of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_core.models.deepseek_v4_config import SPARSE_RATIO, CompressorCaches, V4Config
from deepinfer_core.models.layers.linear import MergedLinear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.packed import empty_parameter
from deepinfer_core.models.layers.tail_rope import TailRope
from deepinfer_core.ops.rows import closed_groups, raw_rows
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class Compressor(nn.Module):
    """Projects each token, pools the groups that close, rotates and stores the rows.

    Args:
        width: of a row.
        ratio: tokens per row.
    """

    def __init__(
        self,
        ops: OpTable,
        config: V4Config,
        width: int,
        ratio: int,
        caches: CompressorCaches,
        *,
        dtype: str,
    ) -> None:
        super().__init__()
        self.ratio, self.caches = ratio, caches
        self.overlaps = ratio == SPARSE_RATIO
        channels = 2 * width if self.overlaps else width
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.project = MergedLinear(
            ops,
            config.hidden_size,
            {"wkv": channels, "wgate": channels},
            dtype="float32",
            role="compressor.project",
        )
        self.ape = empty_parameter(ratio, channels, dtype="float32")
        self.norm = RMSNorm(ops, width, config.norm_eps, dtype=dtype, role="compressor.norm")
        self.rope = TailRope(ops, width, config.rope_head_dim, dtype=dtype, role="compressor.rope")
        self.pool = ops.bind(
            "kv.compress",
            dtype="float32",
            role="compressor.pool",
            features=("strided_cache",),
            group_size=ratio,
            row_width=channels,
        )
        self.store_raw = ops.bind(
            "kv.store",
            dtype="float32",
            role="compressor.raw",
            features=("strided_cache", "latent"),
            head_dim=2 * channels,
            num_kv_heads=1,
        )
        self.store_rows = ops.bind(
            "kv.store",
            dtype=dtype,
            role="compressor.rows",
            features=("strided_cache", "latent"),
            head_dim=width,
            num_kv_heads=1,
        )

    def forward(self, x: Tensor, cos_sin: Tensor, attention: AttentionBatch) -> None:
        """Take in the tokens [T, C] of this step; afterwards the rows they complete are cached."""
        raw_meta, raw_cache = attention.of_cache(self.caches.raw)
        row_meta, row_cache = attention.of_cache(self.caches.rows)
        raw = self.project(x.float()).unsqueeze(1)
        plan = raw_meta.plan_for(self.store_raw)
        self.store_raw(raw, None, raw_cache.k_cache, None, raw_meta.slot_mapping, plan=plan)
        closed = closed_groups(row_meta, self.ratio)
        if not len(closed.groups):
            return
        members = raw_rows(raw_meta, closed, self.ratio, 2 if self.overlaps else 1)
        pooled = self.pool(raw_cache.k_cache.squeeze(2), members, self.ape, self.overlaps)
        rows = self.norm(pooled.to(self.dtype)).unsqueeze(1)
        rows = self.rope(rows, closed.positions, cos_sin)
        self.store_rows(rows, None, row_cache.k_cache, None, closed.slots)
