"""The compressor of DeepSeek-V4.1: a latent per group of one or two tokens, without overlap.

DeepSeek-V4.1, section 2.2. The latent becomes a row for attention and a key for indexers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_core.models.deepseek_v41_config import V41Config
from deepinfer_core.models.layers.linear import MergedLinear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.row_cache import RowCache
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.rows import ClosedGroups, closed_groups, raw_rows
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class SourceCompressor(nn.Module):
    """Projects each token and pools the groups that close.

    Args:
        ratio: tokens per group.
        raw: index of the cache of open groups; None where a token is a group.
    """

    def __init__(
        self, ops: OpTable, config: V41Config, ratio: int, raw: int | None, *, dtype: str
    ) -> None:
        super().__init__()
        self.ratio, self.width = ratio, (width := config.head_dim)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.project = MergedLinear(
            ops,
            config.hidden_size,
            {"wkv": width} if raw is None else {"wkv": width, "wgate": width},
            dtype="float32",
            role="compressor.project",
        )
        self.norm = RMSNorm(ops, width, config.norm_eps, dtype=dtype, role="compressor.norm")
        self.raw = None
        if raw is not None:
            self.raw = RowCache(ops, raw, 2 * width, dtype="float32", role="compressor.raw")
            self.pool = ops.bind(
                "kv.compress",
                dtype="float32",
                role="compressor.pool",
                features=("strided_cache",),
                group_size=ratio,
                row_width=width,
            )

    def forward(
        self, x: Tensor, meta: AttentionMeta, attention: AttentionBatch
    ) -> tuple[Tensor, ClosedGroups]:
        """The latents [E, width] of the groups that the tokens [T, C] of this step complete.

        Args:
            meta: of the caches that the latents are meant for.
        """
        projected = self.project(x.float())
        closed = closed_groups(meta, self.ratio)
        if self.raw is not None:
            self.raw.store(projected, attention)
            raw_meta, raw = self.raw.of(attention)
            members = raw_rows(raw_meta, closed, self.ratio, 1)
            no_bias = raw.new_zeros(self.ratio, self.width)
            projected = self.pool(raw, members, no_bias, False)
        return self.norm(projected.to(self.dtype)), closed
