"""Multi-head latent attention over the paged cache.

DeepSeek-AI 2024, arXiv:2405.04434, section 2.1. The cache holds one row per token, the latent and
a rotated key that all heads share.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_core.models.decoder_config import DecoderConfig, LatentConfig
from deepinfer_core.models.layers.indexer import Indexer
from deepinfer_core.models.layers.latent_core import LatentCore, LatentProjection
from deepinfer_core.models.layers.linear import Linear, MergedLinear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.row_cache import RowCache
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch

LATENT_NORM_EPS = 1e-6
"""Of the norms of latents in the released code, whatever the configuration says of the others."""


class LatentAttention(nn.Module):
    """Project, rotate, store one row per token, attend to latents, project back."""

    def __init__(
        self, ops: OpTable, config: DecoderConfig, latent: LatentConfig, layer: int, *, dtype: str
    ) -> None:
        super().__init__()
        size, num_heads = config.hidden_size, config.num_q_heads
        self.latent = latent
        share = ops.mesh.share(num_heads, "heads")
        self.scale = config.attention_scale
        self.rope_layout = "interleaved" if config.rope.is_interleaved else "half"
        q_size = num_heads * latent.q_head_dim
        # Both read the layer's input: one product.
        self.down_proj = MergedLinear(
            ops,
            size,
            {
                "q_proj" if latent.q_rank is None else "q_a_proj": latent.q_rank or q_size,
                "kv_a_proj_with_mqa": latent.row_dim,
            },
            dtype=dtype,
            role="attn.down",
            bias=config.qkv_bias,
            shares={"q_proj": share},
        )
        self.q_a_layernorm = self.q_b_proj = None
        if latent.q_rank is not None:
            self.q_a_layernorm = RMSNorm(
                ops, latent.q_rank, LATENT_NORM_EPS, dtype=dtype, role="attn.q_norm"
            )
            self.q_b_proj = Linear(
                ops, latent.q_rank, q_size, dtype=dtype, role="attn.q_up", shard="out"
            )
        self.kv_a_layernorm = RMSNorm(
            ops, latent.kv_rank, LATENT_NORM_EPS, dtype=dtype, role="attn.kv_norm"
        )
        self.kv_b_proj = LatentProjection(ops, num_heads, latent, dtype=dtype)
        o_size, bias = num_heads * latent.v_head_dim, config.o_bias
        self.o_proj = Linear(ops, o_size, size, dtype=dtype, role="attn.out", bias=bias, shard="in")
        self.indexer = None
        if config.indexer is not None:
            keys = config.num_layers + layer
            self.indexer = Indexer(ops, config, latent, config.indexer, keys, dtype=dtype)
        record = config.row_record
        self.cache = RowCache(
            ops, layer, latent.row_dim, dtype=dtype, role="attn.store", record=record
        )
        self._bind_cache_ops(ops, dtype)

    def _bind_cache_ops(self, ops: OpTable, dtype: str) -> None:
        latent = self.latent
        self.rotate = ops.bind(
            "rope.apply",
            dtype=dtype,
            role="attn.rope",
            features=("interleaved",) if self.rope_layout == "interleaved" else (),
            head_dim=latent.rope_head_dim,
            rotary_dim=latent.rope_head_dim,
        )
        self.fused = None
        if self.cache.record is None:
            self.fused = ops.bind_fused(
                "attn.latents",
                dtype=dtype,
                role="attn.latents",
                features=("strided_cache", *self.rotate.problem.features),
                kv_rank=latent.kv_rank,
                q_rank=0 if self.q_b_proj is None else latent.q_rank or 0,
                rope_head_dim=latent.rope_head_dim,
            )
        if self.indexer is None:
            self.core = LatentCore(ops, latent, self.kv_b_proj, self.scale, dtype=dtype)
        else:
            self.attend = ops.bind(
                "attn.sparse_mla",
                dtype=dtype,
                role="attn.core",
                features=self.cache.features,
                scheme=self.cache.scheme,
                head_dim=latent.row_dim,
                num_q_heads=self.kv_b_proj.num_heads,
                value_dim=latent.kv_rank,
            )

    def forward(
        self, x: Tensor, positions: Tensor, cos_sin: Tensor, attention: AttentionBatch
    ) -> Tensor:
        """[T, C] -> [T, C]; arguments as of `Attention`."""
        latent, num_tokens = self.latent, x.shape[0]
        q, row = self.down_proj(x).split_with_sizes(list(self.down_proj.parts.values()), dim=1)
        q = q_latent = self._query_latents(q, row, positions, cos_sin, attention)
        if self.q_b_proj is not None:
            q = self.q_b_proj(q_latent)
        q = q.reshape(num_tokens, -1, latent.q_head_dim)
        q_rope = q[..., latent.nope_head_dim :]
        if self.fused is None:
            q_rope = self._rotate_and_store(q_rope, row, positions, cos_sin, attention)
        else:
            q_rope, _ = self.rotate(q_rope, None, positions, cos_sin, layout=self.rope_layout)
        meta, cached = self.cache.of(attention)
        if self.indexer is None:
            values = self.core(q, q_rope, cached, meta)
        else:
            slots = self.indexer(x, q_latent, positions, cos_sin, attention)
            q_latent = self.kv_b_proj.to_latent(q[..., : latent.nope_head_dim])
            q = torch.cat((q_latent, q_rope), dim=2)
            options = self.cache.options()
            o = self.attend(q, cached, slots, self.scale, latent.kv_rank, **options)
            values = self.kv_b_proj.to_value(o)
        y: Tensor = self.o_proj(values.reshape(num_tokens, -1))
        return y

    def _query_latents(
        self,
        q: Tensor,
        row: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> Tensor:
        """Normalise what queries are projected from; projected queries pass.

        Where one kernel does both, the row is stored, too.
        """
        norm = self.q_a_layernorm
        if self.fused is None:
            return q if norm is None else norm(q.contiguous())
        meta, cached = self.cache.of(attention)
        latents = {} if norm is None else {"q": q, "q_weight": norm.weight}
        rest = (cached, meta.slot_mapping, self.kv_a_layernorm.weight, LATENT_NORM_EPS)
        result = self.fused(row, positions, cos_sin, *rest, layout=self.rope_layout, **latents)
        return q if result is None else result

    def _rotate_and_store(
        self,
        q_rope: Tensor,
        row: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> Tensor:
        """Queries rotated, [T, H, rope_head_dim]; normalises, rotates and stores the rows."""
        latent = self.latent
        c, k_rope = row.split_with_sizes((latent.kv_rank, latent.rope_head_dim), dim=1)
        rotated, k_rope = self.rotate(
            q_rope, k_rope.unsqueeze(1), positions, cos_sin, layout=self.rope_layout
        )
        c = self.kv_a_layernorm(c.contiguous())
        self.cache.store(torch.cat((c.unsqueeze(1), k_rope), dim=2), attention)
        queries: Tensor = rotated
        return queries
