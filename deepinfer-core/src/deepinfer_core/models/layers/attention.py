"""Causal self-attention with grouped query heads over the paged cache."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from deepinfer_core.models.decoder_config import DecoderConfig
from deepinfer_core.models.layers.linear import Linear, MergedLinear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch, LayerCache


class Attention(nn.Module):
    """Project, rotate, store keys and values, attend, project back."""

    def __init__(self, ops: OpTable, config: DecoderConfig, layer: int, *, dtype: str) -> None:
        super().__init__()
        self.head_dim = head_dim = config.head_dim
        q_share = ops.mesh.share(config.num_q_heads, "query heads")
        kv_share = ops.mesh.share_or_repeat(config.num_kv_heads, "key and value heads")
        num_q_heads = q_share.size_of(config.num_q_heads)
        num_kv_heads = kv_share.size_of(config.num_kv_heads)
        self.head_counts = (num_q_heads, num_kv_heads, num_kv_heads)
        self.qk_v_counts = (num_q_heads + num_kv_heads, num_kv_heads)
        self.scale = config.attention_scale
        self.layer = layer
        self.window_size = config.windows[layer]
        q_size, kv_size = config.num_q_heads * head_dim, config.num_kv_heads * head_dim
        self.qkv_proj = MergedLinear(
            ops,
            config.hidden_size,
            {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size},
            dtype=dtype,
            role="attn.qkv",
            bias=config.qkv_bias,
            shares={"q_proj": q_share, "k_proj": kv_share, "v_proj": kv_share},
        )
        self.o_proj = Linear(
            ops,
            q_size,
            config.hidden_size,
            dtype=dtype,
            role="attn.out",
            bias=config.o_bias,
            shard="in",
        )
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = RMSNorm(ops, head_dim, config.norm_eps, dtype=dtype, role="attn.q_norm")
            self.k_norm = RMSNorm(ops, head_dim, config.norm_eps, dtype=dtype, role="attn.k_norm")
        self._bind_cache_ops(ops, config, dtype)

    def _bind_cache_ops(self, ops: OpTable, config: DecoderConfig, dtype: str) -> None:
        num_q_heads, num_kv_heads, _ = self.head_counts
        head_dim, window_size = self.head_dim, self.window_size
        self.rotate = ops.bind(
            "rope.apply",
            dtype=dtype,
            role="attn.rope",
            head_dim=head_dim,
            rotary_dim=config.rope.rotary_dim,
        )
        self.store = ops.bind(
            "kv.store",
            dtype=dtype,
            role="attn.store",
            features=("strided_cache",),
            head_dim=head_dim,
            num_kv_heads=num_kv_heads,
        )
        self.fused = ops.bind_fused(
            "attn.qkv",
            dtype=dtype,
            role="attn.qkv",
            features=("strided_cache", *(("qk_norm",) if config.qk_norm else ())),
            head_dim=head_dim,
            num_q_heads=num_q_heads,
            num_kv_heads=num_kv_heads,
            rotary_dim=config.rope.rotary_dim,
        )
        self.attend = ops.bind(
            "attn.paged",
            dtype=dtype,
            role="attn.core",
            features=("varlen", "strided_cache", *(() if window_size is None else ("window",))),
            head_dim=head_dim,
            num_q_heads=num_q_heads,
            num_kv_heads=num_kv_heads,
        )

    def forward(
        self, x: Tensor, positions: Tensor, cos_sin: Tensor, attention: AttentionBatch
    ) -> Tensor:
        """[T, C] -> [T, C]; writes the T tokens' keys and values into the cache.

        Args:
            positions: [T] int64.
            cos_sin: [P, rotary_dim] float32, see `RotaryTable`.
        """
        num_tokens = x.shape[0]
        meta, cache = attention.of_cache(self.layer)
        heads = self.qkv_proj(x).view(num_tokens, -1, self.head_dim)
        o = self.attend(
            self._queries(heads, positions, cos_sin, meta, cache),
            cache.k_cache,
            cache.v_cache,
            meta,
            self.scale,
            window=self.window_size,
            plan=meta.plan_for(self.attend),
        )
        y: Tensor = self.o_proj(o.view(num_tokens, -1))
        return y

    def _queries(
        self,
        heads: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        meta: AttentionMeta,
        cache: LayerCache,
    ) -> Tensor:
        """Projected heads [T, H + 2 * Hk, D] -> queries [T, H, D]; stores keys and values."""
        q: Tensor
        if self.fused is not None:
            norms: dict[str, Any] = {}
            if self.q_norm is not None and self.k_norm is not None:
                norms = {"q_weight": self.q_norm.weight, "k_weight": self.k_norm.weight}
                norms["eps"] = self.q_norm.eps
            caches = (cache.k_cache, cache.v_cache, meta.slot_mapping)
            q = self.fused(heads, self.head_counts[0], positions, cos_sin, *caches, **norms)
            return q
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = heads.split_with_sizes(self.head_counts, dim=1)
            q = self.q_norm(q.reshape(-1, self.head_dim)).view_as(q)
            k = self.k_norm(k.reshape(-1, self.head_dim)).view_as(k)
            q, k = self.rotate(q, k, positions, cos_sin)
        else:
            # Query and key heads lie side by side: one rotation does both.
            qk, v = heads.split_with_sizes(self.qk_v_counts, dim=1)
            qk, _ = self.rotate(qk, None, positions, cos_sin)
            q, k = qk.split_with_sizes(self.head_counts[:2], dim=1)
        self.store(
            k,
            v,
            cache.k_cache,
            cache.v_cache,
            meta.slot_mapping,
            plan=meta.plan_for(self.store),
        )
        return q
