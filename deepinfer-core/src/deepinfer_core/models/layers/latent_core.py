"""Attention to the latents of a cache, in whichever of its two forms costs less.

DeepSeek-AI 2024, arXiv:2405.04434, section 2.1. Absorbed, queries are brought into the space of
the latents and outputs back from it. Expanded, latents are brought into that of the heads: fewer
products per query and key, and more per key. The forms round differently.
"""

from __future__ import annotations

import sys

from torch import Tensor, nn

from deepinfer_core.models.decoder_config import LatentConfig
from deepinfer_core.models.layers.packed import empty_parameter
from deepinfer_core.ops.bound import BoundOp
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.rows import batch_of
from deepinfer_core.ops.table import OpTable
from deepinfer_core.parallel.mesh import Share


class LatentProjection(nn.Module):
    """What takes a latent to each head's key and value."""

    def __init__(self, ops: OpTable, num_heads: int, latent: LatentConfig, *, dtype: str) -> None:
        super().__init__()
        self.share = ops.mesh.share(num_heads, "heads")
        num_heads = self.share.size_of(num_heads)
        self.nope_head_dim = latent.nope_head_dim
        rows = latent.nope_head_dim + latent.v_head_dim
        self.weight = empty_parameter(num_heads * rows, latent.kv_rank, dtype=dtype)
        self.num_heads, self.num_rows = num_heads, rows
        self.absorb = ops.bind(
            "gemm.batched",
            dtype=dtype,
            role="attn.absorb_key",
            num_groups=num_heads,
            in_features=latent.nope_head_dim,
            out_features=latent.kv_rank,
        )
        self.expand = ops.bind(
            "gemm.batched",
            dtype=dtype,
            role="attn.expand_value",
            num_groups=num_heads,
            in_features=latent.kv_rank,
            out_features=latent.v_head_dim,
        )

    def share_of(self, name: str) -> Share:
        """See `packed.Shared`."""
        return self.share

    def by_head(self) -> Tensor:
        """[H, nope_head_dim + v_head_dim, kv_rank]"""
        # LAYOUT: [head][key rows, then value rows][kv_rank]
        return self.weight.view(self.num_heads, self.num_rows, -1)

    def to_latent(self, q: Tensor) -> Tensor:
        """Queries [T, H, nope_head_dim] -> [T, H, kv_rank]."""
        keys = self.by_head()[:, : self.nope_head_dim]
        latents: Tensor = self.absorb(q, keys.transpose(1, 2))
        return latents

    def to_value(self, o: Tensor) -> Tensor:
        """Outputs [T, H, kv_rank] -> [T, H, v_head_dim]."""
        values: Tensor = self.expand(o, self.by_head()[:, self.nope_head_dim :])
        return values


def min_expanded_queries(latent: LatentConfig) -> int:
    """How many queries of a request in a step pay for expanding its keys.

    Half again as many as break even over a long context, where a key costs kv_rank * width
    products more per head, and a pair 2 * kv_rank - width fewer: 256 for V3, where as measured on
    a CPU 512 over 8,192 tokens take a quarter less time.
    """
    width = latent.nope_head_dim + latent.v_head_dim
    saved = 2 * latent.kv_rank - width
    # Never one alone: steps of one token per request are recorded, and this is not.
    return max(2, 3 * latent.kv_rank * width // (2 * saved)) if saved > 0 else sys.maxsize


class LatentCore:
    """Serves each request of a batch expanded or absorbed.

    Where a row's bits must not depend on its batch, all are absorbed.

    Args:
        projection: of the layer, which keeps it.
        scale: factor of the scores.
    """

    def __init__(
        self,
        ops: OpTable,
        latent: LatentConfig,
        projection: LatentProjection,
        scale: float,
        *,
        dtype: str,
    ) -> None:
        self.projection, self.scale = projection, scale
        self.v_head_dim = latent.v_head_dim
        self.min_queries = min_expanded_queries(latent)
        self.absorbed = ops.bind(
            "attn.mla",
            dtype=dtype,
            role="attn.core",
            features=("varlen", "strided_cache"),
            kv_rank=latent.kv_rank,
            num_q_heads=projection.num_heads,
            rope_head_dim=latent.rope_head_dim,
        )
        self.expanded = ops.bind_alternative(
            self.absorbed,
            "attn.mla_prefill",
            nope_head_dim=latent.nope_head_dim,
            v_head_dim=latent.v_head_dim,
        )

    def __call__(self, q: Tensor, q_rope: Tensor, cache: Tensor, meta: AttentionMeta) -> Tensor:
        """Attend causally to the cache's latents.

        Args:
            q: [T, H, nope_head_dim + rope_head_dim], not rotated; consumed.
            q_rope: [T, H, rope_head_dim], rotated.
            cache: [P, s, kv_rank + rope_head_dim]

        Returns:
            [T, H, v_head_dim]
        """
        expanded = self.expanded
        long = [i for i, count in enumerate(meta.query_lens) if count >= self.min_queries]
        if expanded is None or not long:
            return self._attend_absorbed(q, q_rope, cache, meta)
        if len(long) == meta.num_reqs:
            return self._attend_expanded(expanded, q, q_rope, cache, meta)
        short = [i for i, count in enumerate(meta.query_lens) if count < self.min_queries]
        values = q.new_empty(*q.shape[:2], self.v_head_dim)
        rows, part = batch_of(meta, long)
        values[rows] = self._attend_expanded(expanded, q[rows], q_rope[rows], cache, part)
        rows, part = batch_of(meta, short)
        values[rows] = self._attend_absorbed(q[rows], q_rope[rows], cache, part)
        return values

    def _attend_absorbed(
        self, q: Tensor, q_rope: Tensor, cache: Tensor, meta: AttentionMeta
    ) -> Tensor:
        q_nope = q[..., : self.projection.nope_head_dim]
        q_latent, plan = self.projection.to_latent(q_nope), meta.plan_for(self.absorbed)
        o = self.absorbed(q_latent, q_rope, cache, meta, self.scale, plan=plan)
        return self.projection.to_value(o)

    def _attend_expanded(
        self, attend: BoundOp, q: Tensor, q_rope: Tensor, cache: Tensor, meta: AttentionMeta
    ) -> Tensor:
        q, weight = q.contiguous(), self.projection.by_head()
        q[..., self.projection.nope_head_dim :] = q_rope
        values: Tensor = attend(q, cache, weight, meta, self.scale, plan=meta.plan_for(attend))
        return values
