"""Token embedding, and the matrix of the output head where the two are not tied."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import embedding

from deepinfer_core.models.layers.collectives import bind_sum
from deepinfer_core.models.layers.packed import empty_parameter
from deepinfer_core.ops.table import OpTable
from deepinfer_core.parallel.mesh import Share


class VocabMatrix(nn.Module):
    """One row of C numbers per token of the vocabulary: `weight` [V, C], or this rank's rows."""

    def __init__(
        self, ops: OpTable, vocab_size: int, hidden_size: int, *, dtype: str, role: str
    ) -> None:
        super().__init__()
        self.share = ops.mesh.share(vocab_size, "tokens of the vocabulary")
        self.weight = empty_parameter(self.share.size_of(vocab_size), hidden_size, dtype=dtype)
        self.sum = bind_sum(ops, dtype=dtype, role=role)

    def forward(self, token_ids: Tensor) -> Tensor:
        """[T] int32 -> rows [T, C]. Ids must be in range; nothing checks them here."""
        if self.sum is None:
            return embedding(token_ids, self.weight)
        num_rows = len(self.weight)
        own_ids = token_ids - self.share.index * num_rows
        is_other = (own_ids < 0) | (own_ids >= num_rows)
        rows = embedding(own_ids.masked_fill(is_other, 0), self.weight)
        return self.sum(rows.masked_fill_(is_other.unsqueeze(1), 0))

    def share_of(self, name: str) -> Share:
        """See `Shared`."""
        return self.share
