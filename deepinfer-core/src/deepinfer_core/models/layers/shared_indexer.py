"""The indexer of DeepSeek-V4.1: keys made of a source's latents, blocks kept for later layers."""

from __future__ import annotations

from torch import Tensor

from deepinfer_core.models.deepseek_v41_config import V41Config
from deepinfer_core.models.layers.key_indexer import KeyIndexer
from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.row_cache import RowCache
from deepinfer_core.ops.rows import ClosedGroups
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch

CANDIDATE_BLOCKS = "candidate_blocks"


class SharedIndexer(KeyIndexer):
    """Picks rows of a source (DeepSeek-V4.1, section 2.2).

    Args:
        layer: whose it is.
        keys: index of the cache of its source's keys.
    """

    def __init__(
        self, ops: OpTable, config: V41Config, layer: int, keys: int, *, dtype: str
    ) -> None:
        width, record, role = config.indexer.head_dim, config.key_record, "index.store"
        cache = RowCache(ops, keys, width, dtype=dtype, role=role, record=record)
        candidate_role = _role(config, layer)
        super().__init__(
            ops,
            config,
            cache,
            config.compress_ratios[layer],
            dtype=dtype,
            features=() if candidate_role is None else ("candidates",),
        )
        self.candidates, self.role = config.candidates, candidate_role
        self.wk = self.k_norm = None
        if config.kv_source(layer) == layer:
            self.wk = Linear(ops, config.head_dim, width, dtype=dtype, role="index.k")
            self.k_norm = RMSNorm(ops, width, config.norm_eps, dtype=dtype, role="index.k_norm")

    def store_keys(
        self, latents: Tensor, closed: ClosedGroups, cos_sin: Tensor, attention: AttentionBatch
    ) -> None:
        """Keys of the rows that a source completes: of their latents [E, head_dim] before rope."""
        assert self.wk is not None and self.k_norm is not None  # of a source
        keys = self.k_norm(self.wk(latents)).unsqueeze(1)
        self.keys.store_at(self.rope(keys, closed.positions, cos_sin), closed.slots, attention)

    def forward(
        self,
        x: Tensor,
        q_latent: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        attention: AttentionBatch,
    ) -> Tensor:
        """[T, C] and the normalised latent of the queries -> slots [T, top_k] int32."""
        chosen: Tensor
        candidates, handed_on = self.candidates, attention.handed_on
        inputs = (x, q_latent, positions, cos_sin, attention)
        if candidates is None or self.role is None:
            chosen = self.pick(*inputs)
            return chosen
        size = candidates.rows_per_block
        if self.role == "keeps":
            chosen, handed_on[CANDIDATE_BLOCKS] = self.pick(
                *inputs, num_blocks=candidates.num_blocks, rows_per_block=size
            )
            return chosen
        chosen = self.pick(*inputs, blocks=handed_on[CANDIDATE_BLOCKS], rows_per_block=size)
        return chosen


def _role(config: V41Config, layer: int) -> str | None:
    """What a layer has to do with candidate blocks: it `keeps` some, `obeys`, or nothing."""
    if config.candidates is None or layer < config.candidates.source_layer:
        return None
    return "keeps" if layer == config.candidates.source_layer else "obeys"
