"""The indexer's choice: scores of some tokens at a time, then the highest of each row."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.records import Record
from deepinfer_core.ops.rows import token_requests
from torch import Tensor

from deepinfer_cuda.heuristics_index import ScoresLaunch, pick_block, scores_launch
from deepinfer_cuda.kernels.index_pick import pick_kernel
from deepinfer_cuda.kernels.index_scores import block_scores_kernel, scores_kernel
from deepinfer_cuda.kernels.limits import dtype_name
from deepinfer_cuda.kernels.records import layout_of

MAX_SCORE_BYTES = 2**28
"""Of scores at a time; a step with more is worked off in parts."""
TYPES = {
    "float32": tl.float32,
    "bfloat16": tl.bfloat16,
    "float16": tl.float16,
}
BLOCKS_AT_A_TIME = 64


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
    """See `deepinfer_core.ops.specs.index.select`."""
    call = _Call(q, weights, cache, meta, top_k, tokens_per_row, record)
    call.see_blocks(blocks, num_blocks, rows_per_block)
    return call.run(is_shared=meta.max_query_len > 1)


def select_invariant(
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
    """As `select`, with one query to a tile: the same choice in any batch."""
    call = _Call(q, weights, cache, meta, top_k, tokens_per_row, record)
    call.see_blocks(blocks, num_blocks, rows_per_block)
    return call.run(is_shared=False)


class _Call:
    """One call of the op; its scores are made and used part by part."""

    def __init__(
        self,
        q: Tensor,
        weights: Tensor,
        cache: Tensor,
        meta: AttentionMeta,
        top_k: int,
        tokens_per_row: int,
        record: Record | None,
    ) -> None:
        self.q = q if q.stride(2) == 1 else q.contiguous()
        self.weights = weights if weights.stride(1) == 1 else weights.contiguous()
        self.cache, self.meta, self.record = cache, meta, record
        self.top_k, self.tokens_per_row = top_k, tokens_per_row
        self.width = max(1, meta.max_seq_len // tokens_per_row)
        self.requests = token_requests(meta)
        self.see_blocks(None, 0, 0)

    def see_blocks(self, listed: Tensor | None, num_kept: int, rows_per_block: int) -> None:
        """Blocks to look at, or to pick: arguments of the op."""
        self.listed, self.num_kept, self.per_block = listed, num_kept, rows_per_block
        # Tokens that see no more rows need no scores: all of them are chosen.
        self.num_unscored = min(self.top_k, num_kept * rows_per_block or self.top_k)
        if listed is not None:
            whole = -(-self.width // rows_per_block)
            self.listed = listed[:, :whole] if listed.shape[1] > whole else listed
            self.width = max(1, self.listed.shape[1]) * rows_per_block
            self.num_unscored = -1

    def run(self, *, is_shared: bool) -> Tensor | tuple[Tensor, Tensor]:
        num_tokens, device = self.q.shape[0], self.q.device
        chosen = torch.empty((num_tokens, self.top_k), dtype=torch.int32, device=device)
        kept = torch.empty((num_tokens, self.num_kept), dtype=torch.int32, device=device)
        for part in self._parts():
            scores = self._score(part, is_shared=is_shared and self.listed is None)
            self._pick(scores, chosen, part)
            if self.num_kept:
                self._pick_blocks(scores, kept, part)
        return (chosen, kept) if self.num_kept else chosen

    def _parts(self) -> Iterator[slice]:
        num_tokens = self.q.shape[0]
        step = max(1, MAX_SCORE_BYTES // (4 * self.width))
        for first in range(0, num_tokens, step):
            yield slice(first, min(first + step, num_tokens))

    def _multiplied(self) -> str:
        """The dtype in which queries and keys are multiplied, whose products are exact."""
        own, record = dtype_name(self.q.dtype), self.record
        if record is None or record.num_scales == 1:
            return own
        # Codes of four bits, scaled by powers of two.
        is_exact = record.format.codes == "e2m1" and record.format.scales == "ue8m0"
        return own if own == "bfloat16" and is_exact else "float32"

    def _score(self, part: slice, *, is_shared: bool) -> Tensor:
        q, cache, record, meta = self.q, self.cache, self.record, self.meta
        count = part.stop - part.start
        scores = torch.empty((count, self.width), dtype=torch.float32, device=q.device)
        dtype = self._multiplied()
        launch: ScoresLaunch = scores_launch(
            count,
            q.shape[1],
            q.shape[2],
            dtype,
            is_shared=is_shared,
            is_decoded=record is not None and record.num_scales > 1,
        )
        scores_kernel[(triton.cdiv(count, launch.queries), launch.num_shares)](
            q,
            self.weights,
            cache,
            scores,
            meta.block_tables,
            self.requests,
            meta.positions,
            self.requests if self.listed is None else self.listed,
            q.stride(0),
            q.stride(1),
            self.weights.stride(0),
            cache.stride(0),
            meta.block_tables.stride(0),
            0 if self.listed is None else self.listed.stride(0),
            self.width,
            part.start,
            part.stop,
            q.shape[1],
            cache.shape[1],
            self.tokens_per_row,
            launch.num_shares,
            self.num_unscored,
            ROW=cache.shape[2],
            HEAD_DIM=q.shape[2],
            DIMS=launch.dims,
            QUERIES=launch.queries,
            HEADS=launch.heads,
            KEYS=launch.keys,
            LISTED=0 if self.listed is None else self.per_block,
            RECORD=layout_of(record),
            ONE_SCALE=record is not None and record.num_scales == 1,
            DTYPE=TYPES[dtype],
            PRECISION="ieee" if dtype == "float32" else "tf32",
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
        )
        return scores

    def _pick(self, scores: Tensor, chosen: Tensor, part: slice) -> None:
        meta, block = self.meta, pick_block(self.width)
        pick_kernel[(len(scores),)](
            scores,
            chosen,
            meta.block_tables,
            self.requests,
            meta.positions,
            self.requests if self.listed is None else self.listed,
            self.width,
            meta.block_tables.stride(0),
            0 if self.listed is None else self.listed.stride(0),
            part.start,
            self.cache.shape[1],
            self.tokens_per_row,
            1,
            NUM_PICKED=self.top_k,
            LISTED=0 if self.listed is None else self.per_block,
            WANTS_SLOTS=True,
            BLOCK=block,
            num_warps=8 if block >= 2048 else 4,
        )

    def _pick_blocks(self, scores: Tensor, kept: Tensor, part: slice) -> None:
        meta, width = self.meta, -(-self.width // self.per_block)
        best = torch.empty((len(scores), width), dtype=torch.float32, device=scores.device)
        block_scores_kernel[(len(scores), triton.cdiv(width, BLOCKS_AT_A_TIME))](
            scores,
            best,
            meta.positions,
            self.width,
            width,
            part.start,
            self.tokens_per_row,
            self.num_unscored,
            PER_BLOCK=self.per_block,
            ROWS=triton.next_power_of_2(self.per_block),
            BLOCKS=BLOCKS_AT_A_TIME,
            num_warps=4,
        )
        block = pick_block(width)
        pick_kernel[(len(scores),)](
            best,
            kept,
            meta.block_tables,
            self.requests,
            meta.positions,
            self.requests,
            width,
            meta.block_tables.stride(0),
            0,
            part.start,
            1,
            self.tokens_per_row,
            self.per_block,
            NUM_PICKED=self.num_kept,
            LISTED=0,
            WANTS_SLOTS=False,
            BLOCK=block,
            num_warps=8 if block >= 2048 else 4,
        )
