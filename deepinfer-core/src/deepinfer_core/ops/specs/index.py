"""Specs of the ops that pick which tokens sparse attention sees."""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.ops.records import Record


@op("index.select", major=1, tier=1, features={"strided_cache", "candidates", "records"})
def select(
    q: Tensor,
    weights: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    top_k: int,
    tokens_per_row: int = 1,
    blocks: Tensor | None = None,
    num_blocks: int = 0,
    rows_per_block: int = 0,
    record: Record | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Pick the tokens that each query attends to: those that a light indexer scores highest.

    The score of key s for query t is the sum over heads of weights[t, h] * relu(q[t, h].k[s])
    (DeepSeek-AI 2025, DeepSeek-V3.2, section 2.1).

    Args:
        q: [T, H, D], tokens as in `attn.paged`.
        weights: [T, H] float32, of any sign, all factors included.
        cache: [P, s, D] keys in the dtype of q, this step's included. Contiguous but for the block
            axis, whose stride may be larger (feature `strided_cache`).
        meta: the batch.
        top_k: tokens per query.
        tokens_per_row: what one row of the cache stands for. Row w is seen from token
            (w + 1) * tokens_per_row - 1 on, and has the slot of its first token divided by this;
            s is the block size of the meta divided by it.
        blocks: [T, n] int32 numbers of candidate blocks, ascending, -1 after the last: rows
            outside of them are not looked at (feature `candidates`). Block b is the rows
            b * rows_per_block and on, counted from the start of the request.
        num_blocks: above 0, also return that many candidate blocks (`candidates`): those whose
            best row scores highest, the lower block among equals, the newest visible row's in
            any case; all blocks with a visible row if there are no more (DeepSeek-V4.1).
        rows_per_block: of `blocks` and `num_blocks`.
        record: what the keys are, if not plain rows: then the cache is [P, s, record.num_bytes]
            uint8, and q are rounded and turned alike (feature `records`, its format the scheme).

    Returns:
        slots [T, top_k] int32 in ascending order of position, -1 after the last. All visible
        tokens if there are no more than top_k; among equal scores the lower position wins. With
        `num_blocks` also the blocks [T, num_blocks], as the argument wants them.

    Never waits for the device.
    """
