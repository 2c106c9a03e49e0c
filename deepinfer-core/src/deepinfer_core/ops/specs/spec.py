"""Signatures of the ops of speculative decoding. N requests, K drafts of each at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor


@op("spec.verify", major=1, tier=1)
def verify(draft_ids: Tensor, token_ids: Tensor) -> Tensor:
    """Count the drafts that the target would have drawn itself.

    What it draws at a position, with the noise of that position, is its answer whatever was
    drafted: a draft is accepted iff it is that token and all drafts before it are accepted.

    Args:
        draft_ids: [N, K] int32; -1 where a request has fewer drafts.
        token_ids: [N, K] int32, what the target drew at the positions of the drafts.

    Returns:
        [N] int32, at most the number of drafts. What was drawn behind the last accepted draft
        comes on top; the rest is void.
    """
