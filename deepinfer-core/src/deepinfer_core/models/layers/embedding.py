"""Token embedding, and the matrix of the output head where the two are not tied."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import embedding

from deepinfer_core.models.layers.packed import empty_parameter


class VocabMatrix(nn.Module):
    """One row of C numbers per token of the vocabulary: `weight` [V, C]."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: str) -> None:
        super().__init__()
        self.weight = empty_parameter(vocab_size, hidden_size, dtype=dtype)

    def forward(self, token_ids: Tensor) -> Tensor:
        """[T] int32 -> rows [T, C]. Ids must be in range; nothing checks them here."""
        return embedding(token_ids, self.weight)
