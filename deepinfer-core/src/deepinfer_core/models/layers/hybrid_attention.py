"""Attention of DeepSeek-V4: a sliding window, and behind it compressed rows, all of them or some.

DeepSeek-V4, section 2.3. One row per token is key and value of all heads; since it is rotated, the
output is rotated back by the query's position.
"""

from __future__ import annotations

from typing import Any

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
from deepinfer_core.parallel.mesh import Share
from deepinfer_core.runtime.batch import AttentionBatch


class GroupedProjection(nn.Module):
    """Projects the heads of each group on their own: `weight` [groups * rank, its inputs]."""

    def __init__(self, ops: OpTable, config: V4Config, *, dtype: str) -> None:
        super().__init__()
        rank = config.output_rank
        width = config.num_q_heads * config.head_dim // config.output_groups
        self.share = ops.mesh.share(config.output_groups, "groups of heads")
        groups = self.share.size_of(config.output_groups)
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

    def share_of(self, name: str) -> Share:
        """See `packed.Shared`: whole groups."""
        return self.share


class WindowAttention(nn.Module):
    """Project, rotate, store, attend to the window, rotate back, project.

    Args:
        window: index of the window's cache.
    """

    def __init__(self, ops: OpTable, config: V4Config, window: int, *, dtype: str) -> None:
        super().__init__()
        size, head_dim, num_heads = config.hidden_size, config.head_dim, config.num_q_heads
        self.config = config
        self.down = MergedLinear(
            ops, size, {"wq_a": config.q_rank, "wkv": head_dim}, dtype=dtype, role="attn.down"
        )
        self.q_norm = RMSNorm(ops, config.q_rank, config.norm_eps, dtype=dtype, role="attn.q_norm")
        self.kv_norm = RMSNorm(ops, head_dim, config.norm_eps, dtype=dtype, role="attn.kv_norm")
        self.wq_b = Linear(
            ops, config.q_rank, num_heads * head_dim, dtype=dtype, role="attn.q_up", shard="out"
        )
        self.wo_a = GroupedProjection(ops, config, dtype=dtype)
        width = config.output_groups * config.output_rank
        self.wo_b = Linear(ops, width, size, dtype=dtype, role="attn.out", shard="in")
        # Heads go with their groups.
        self.share = self.wo_a.share
        num_heads = self.share.size_of(num_heads)
        self.attn_sink = empty_parameter(num_heads, dtype="float32")
        self.rope = TailRope(ops, head_dim, config.rope_head_dim, dtype=dtype, role="attn.rope")
        self.head_norm = None
        if config.norms_heads:
            self.head_norm = ops.bind(
                "norm.rms", dtype=dtype, role="attn.head_norm", hidden_size=head_dim
            )
        self.window = RowCache(
            ops, window, head_dim, dtype=dtype, role="attn.store", record=config.window_record
        )
        self.attend = ops.bind(
            "attn.sparse_mla",
            dtype=dtype,
            role="attn.core",
            features=(*self.window.features, "sinks"),
            scheme=config.attention_scheme,
            num_q_heads=num_heads,
            head_dim=head_dim,
            value_dim=head_dim,
        )

    def share_of(self, name: str) -> Share:
        """See `packed.Shared`."""
        return self.share

    def forward(
        self, x: Tensor, positions: Tensor, cos_sin: Tensor, attention: AttentionBatch
    ) -> Tensor:
        """[T, C] -> [T, C].

        Args:
            cos_sin: of the layer's own frequencies.
        """
        q_latent = self.write(x, positions, cos_sin, attention)
        return self.read(x, q_latent, positions, cos_sin, attention)

    def write(
        self, x: Tensor, positions: Tensor, cos_sin: Tensor, attention: AttentionBatch
    ) -> Tensor:
        """Cache the rows of the tokens [T, C]; gives what `read` makes queries of [T, q_rank]."""
        q_latent, row = self.project_down(x, positions, cos_sin)
        self.window.store(row, attention)
        return q_latent

    def read(
        self,
        x: Tensor,
        q_latent: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> Tensor:
        """What the tokens [T, C] see in the caches: [T, C]."""
        q = self.queries(q_latent, positions, cos_sin)
        meta, window = self.window.of(attention)
        rows = window_rows(meta, self.config.window_size)
        extra = self._further_rows(x, q_latent, positions, cos_sin, attention)
        o = self.attend_to(q, window, rows, **extra)
        return self.project_back(o, positions, cos_sin)

    def project_down(self, x: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
        """[T, C] -> the normalised latents of the queries [T, q_rank], and the rotated rows
        [T, 1, head_dim]."""
        config = self.config
        q_latent, row = self.down(x).split_with_sizes((config.q_rank, config.head_dim), dim=1)
        row = self.rope(self.kv_norm(row.contiguous()).unsqueeze(1), positions, cos_sin)
        return self.q_norm(q_latent.contiguous()), row

    def queries(self, q_latent: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
        """[T, q_rank] -> [T, H, head_dim], rotated."""
        config = self.config
        heads = self.wq_b(q_latent).view(-1, config.head_dim)
        if self.head_norm is not None:
            heads, _ = self.head_norm(heads, None, config.norm_eps)
        return self.rope(heads.view(len(q_latent), -1, config.head_dim), positions, cos_sin)

    def attend_to(self, q: Tensor, cache: Tensor, rows: Tensor, **extra: Any) -> Tensor:
        """Queries to rows of one cache and, in `extra`, of a second one, see `attn.sparse_mla`."""
        config = self.config
        o: Tensor = self.attend(
            q,
            cache,
            rows,
            config.attention_scale,
            config.head_dim,
            sinks=self.attn_sink,
            **self.window.options(),
            **extra,
        )
        return o

    def project_back(self, o: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
        """[T, H, head_dim] -> [T, C]."""
        o = self.rope(o, positions, cos_sin, inverse=True)
        y: Tensor = self.wo_b(self.wo_a(o))
        return y

    def _further_rows(
        self,
        x: Tensor,
        q_latent: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> dict[str, Any]:
        """A second cache that this step's queries attend to, and its rows; here there is none."""
        return {}


class HybridAttention(WindowAttention):
    """Attends to compressed rows too: to those that an indexer picks, or to all."""

    def __init__(
        self, ops: OpTable, config: V4Config, layer: int, caches: LayerCaches, *, dtype: str
    ) -> None:
        super().__init__(ops, config, caches.window, dtype=dtype)
        ratio = config.compress_ratios[layer]
        self.compressor = self.indexer = None
        if caches.compressor is not None:
            width, record = config.head_dim, config.row_record
            self.compressor = Compressor(
                ops, config, width, ratio, caches.compressor, dtype=dtype, record=record
            )
        if caches.indexer is not None:
            self.indexer = RowIndexer(ops, config, ratio, caches.indexer, dtype=dtype)

    def _further_rows(
        self,
        x: Tensor,
        q_latent: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> dict[str, Any]:
        if self.compressor is None:
            return {}
        self.compressor(x, cos_sin, attention)
        meta, cache = self.compressor.rows.of(attention)
        if self.indexer is None:
            rows = compressed_rows(meta, self.compressor.ratio)
        else:
            rows = self.indexer(x, q_latent, positions, cos_sin, attention)
        records = self.compressor.rows.options("extra_record")
        return {"extra_cache": cache, "extra_rows": rows, **records}
