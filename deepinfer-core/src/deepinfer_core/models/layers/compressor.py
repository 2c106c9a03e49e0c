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
from deepinfer_core.models.layers.row_cache import RowCache
from deepinfer_core.models.layers.tail_rope import TailRope
from deepinfer_core.ops.records import Record
from deepinfer_core.ops.rows import closed_groups, raw_rows
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class Compressor(nn.Module):
    """Projects each token, pools the groups that close, rotates and stores the rows.

    Args:
        width: of a row.
        ratio: tokens per row.
        record: what the rows are, if not plain.
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
        record: Record | None = None,
    ) -> None:
        super().__init__()
        self.ratio = ratio
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
        self.raw = RowCache(ops, caches.raw, 2 * channels, dtype="float32", role="compressor.raw")
        self.rows = RowCache(
            ops, caches.rows, width, dtype=dtype, role="compressor.rows", record=record
        )

    def forward(self, x: Tensor, cos_sin: Tensor, attention: AttentionBatch) -> None:
        """Take in the tokens [T, C] of this step; afterwards the rows they complete are cached."""
        raw_meta, raw = self.raw.of(attention)
        row_meta, _ = self.rows.of(attention)
        self.raw.store(self.project(x.float()), attention)
        closed = closed_groups(row_meta, self.ratio)
        if not len(closed.groups):
            return
        members = raw_rows(raw_meta, closed, self.ratio, 2 if self.overlaps else 1)
        pooled = self.pool(raw, members, self.ape, self.overlaps)
        rows = self.norm(pooled.to(self.dtype)).unsqueeze(1)
        rows = self.rope(rows, closed.positions, cos_sin)
        self.rows.store_at(rows, closed.slots, attention)
