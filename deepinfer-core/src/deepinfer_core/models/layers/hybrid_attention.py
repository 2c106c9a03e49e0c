"""Attention of DeepSeek-V4: a sliding window, and behind it compressed rows, all of them or some.

DeepSeek-V4, section 2.3. One row per token is key and value of all heads; since it is rotated, the
output is rotated back by the query's position.
"""

from __future__ import annotations

from torch import Tensor, nn

from deepinfer_core.models.deepseek_v4_config import LayerCaches, V4Config
from deepinfer_core.models.layers.compressor import Compressor
from deepinfer_core.models.layers.linear import Linear, MergedLinear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.packed import empty_parameter
from deepinfer_core.models.layers.row_cache import RowCache
from deepinfer_core.models.layers.row_indexer import RowIndexer
from deepinfer_core.models.layers.tail_rope import TailRope
from deepinfer_core.ops.rows import compressed_rows, window_rows
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch


class GroupedProjection(nn.Module):
    """Projects the heads of each group on their own: `weight` [groups * rank, its inputs]."""

    def __init__(self, ops: OpTable, config: V4Config, *, dtype: str) -> None:
        super().__init__()
        groups, rank = config.output_groups, config.output_rank
        width = config.num_q_heads * config.head_dim // groups
        self.shape = (groups, rank, width)
        self.weight = empty_parameter(groups * rank, width, dtype=dtype)
        self.gemm = ops.bind(
            "gemm.batched",
            dtype=dtype,
            role="attn.out_groups",
            num_groups=groups,
            in_features=width,
            out_features=rank,
        )

    def forward(self, o: Tensor) -> Tensor:
        """[T, H, head_dim] -> [T, groups * rank]."""
        groups, _, width = self.shape
        y: Tensor = self.gemm(o.reshape(-1, groups, width), self.weight.view(self.shape))
        return y.reshape(len(o), -1)


class HybridAttention(nn.Module):
    """Project, rotate, store, compress, attend to the window and to rows, rotate back, project."""

    def __init__(
        self, ops: OpTable, config: V4Config, layer: int, caches: LayerCaches, *, dtype: str
    ) -> None:
        super().__init__()
        size, head_dim, num_heads = config.hidden_size, config.head_dim, config.num_q_heads
        self.config, self.caches = config, caches
        ratio = config.compress_ratios[layer]
        self.down = MergedLinear(
            ops, size, {"wq_a": config.q_rank, "wkv": head_dim}, dtype=dtype, role="attn.down"
        )
        self.q_norm = RMSNorm(ops, config.q_rank, config.norm_eps, dtype=dtype, role="attn.q_norm")
        self.kv_norm = RMSNorm(ops, head_dim, config.norm_eps, dtype=dtype, role="attn.kv_norm")
        self.wq_b = Linear(ops, config.q_rank, num_heads * head_dim, dtype=dtype, role="attn.q_up")
        self.attn_sink = empty_parameter(num_heads, dtype="float32")
        self.wo_a = GroupedProjection(ops, config, dtype=dtype)
        self.wo_b = Linear(
            ops, config.output_groups * config.output_rank, size, dtype=dtype, role="attn.out"
        )
        self.rope = TailRope(ops, head_dim, config.rope_head_dim, dtype=dtype, role="attn.rope")
        self.compressor = self.indexer = None
        if caches.compressor is not None:
            self.compressor = Compressor(
                ops, config, head_dim, ratio, caches.compressor, dtype=dtype
            )
        if caches.indexer is not None:
            self.indexer = RowIndexer(ops, config, ratio, caches.indexer, dtype=dtype)
        self._bind(ops, dtype)

    def _bind(self, ops: OpTable, dtype: str) -> None:
        config = self.config
        # Each query head by itself, without a weight.
        self.head_norm = ops.bind(
            "norm.rms", dtype=dtype, role="attn.head_norm", hidden_size=config.head_dim
        )
        self.window = RowCache(
            ops, self.caches.window, config.head_dim, dtype=dtype, role="attn.store"
        )
        self.attend = ops.bind(
            "attn.sparse_mla",
            dtype=dtype,
            role="attn.core",
            features=("strided_cache", "sinks"),
            num_q_heads=config.num_q_heads,
            head_dim=config.head_dim,
            value_dim=config.head_dim,
        )

    def forward(
        self, x: Tensor, positions: Tensor, cos_sin: Tensor, attention: AttentionBatch
    ) -> Tensor:
        """[T, C] -> [T, C].

        Args:
            cos_sin: of the layer's own frequencies.
        """
        config, num_tokens = self.config, x.shape[0]
        q_latent, row = self.down(x).split_with_sizes((config.q_rank, config.head_dim), dim=1)
        q_latent = self.q_norm(q_latent.contiguous())
        heads, _ = self.head_norm(
            self.wq_b(q_latent).view(-1, config.head_dim), None, config.norm_eps
        )
        q = self.rope(heads.view(num_tokens, -1, config.head_dim), positions, cos_sin)
        row = self.rope(self.kv_norm(row.contiguous()).unsqueeze(1), positions, cos_sin)
        self.window.store(row, attention)
        meta, window = self.window.of(attention)
        o = self.attend(
            q,
            window,
            window_rows(meta, config.window_size),
            config.attention_scale,
            config.head_dim,
            sinks=self.attn_sink,
            **self._compressed(x, q_latent, positions, cos_sin, attention),
        )
        o = self.rope(o, positions, cos_sin, inverse=True)
        y: Tensor = self.wo_b(self.wo_a(o))
        return y

    def _compressed(
        self,
        x: Tensor,
        q_latent: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> dict[str, Tensor]:
        """The second cache that this step's queries attend to, and its rows."""
        if self.compressor is None:
            return {}
        self.compressor(x, cos_sin, attention)
        meta, cache = self.compressor.rows.of(attention)
        if self.indexer is None:
            rows = compressed_rows(meta, self.compressor.ratio)
        else:
            rows = self.indexer(x, q_latent, positions, cos_sin, attention)
        return {"extra_cache": cache, "extra_rows": rows}
