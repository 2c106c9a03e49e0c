"""The last tokens of each request of a step, with which late layers go on alone.

What DeepSeek-V4.1 calls bounded replay on the decoder side: layers behind the last source of rows
leave nothing that lasts but their windows, so of a long chunk they need compute only a window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.runtime.batch import AttentionBatch, ForwardBatch, ImageRows
from deepinfer_core.staging import to_device


@dataclass(frozen=True, slots=True)
class Tail:
    """N of the T tokens of a step."""

    kept: Tensor
    """[N] int64, which they are."""
    first: ForwardBatch
    """Of the layer whose window all tokens wrote to."""
    later: ForwardBatch
    """Of layers behind it, whose windows begin where the tail of a request does."""

    def of(self, rows: Tensor) -> Tensor:
        """[T, ..] -> [N, ..]."""
        return rows.index_select(0, self.kept)

    def spread(self, rows: Tensor, num_tokens: int) -> Tensor:
        """[N, ..] -> [T, ..], zeros where a token is not of the tail."""
        spread = rows.new_zeros(num_tokens, *rows.shape[1:])
        return spread.index_copy_(0, self.kept, rows)


def take_tail(batch: ForwardBatch, length: int) -> Tail | None:
    """The last `length` tokens of each request; None if no request has more in this step."""
    counts = np.array(batch.attention.groups[0].query_lens, dtype=np.int64)
    if counts.max(initial=0) <= length:
        return None
    kept_counts = np.minimum(counts, length)
    ends = counts.cumsum()
    firsts = ends - kept_counts
    order = np.arange(kept_counts.sum()) - (kept_counts.cumsum() - kept_counts).repeat(kept_counts)
    device = batch.positions.device
    kept = to_device(firsts.repeat(kept_counts) + order, device)
    bounds = to_device(np.concatenate(([0], kept_counts.cumsum())), device).int()
    is_cut = to_device(counts > length, device).bool()

    def trim(meta: AttentionMeta, *, is_first: bool) -> AttentionMeta:
        starts = meta.window_starts
        if not is_first:
            before = torch.zeros_like(meta.seq_lens) if starts is None else starts
            starts = torch.where(is_cut, meta.seq_lens - length, before)
        return replace(
            meta,
            cu_seqlens_q=bounds,
            slot_mapping=meta.slot_mapping.index_select(0, kept),
            positions=meta.positions.index_select(0, kept),
            query_lens=kept_counts.tolist(),
            window_starts=starts,
            plans={},
        )

    def trim_all(*, is_first: bool) -> ForwardBatch:
        whole = batch.attention
        groups = [trim(meta, is_first=is_first) for meta in whole.groups]
        return ForwardBatch(
            batch.input_ids.index_select(0, kept),
            batch.positions.index_select(0, kept),
            AttentionBatch(groups, whole.cache_groups, whole.caches, whole.handed_on),
            images=None if batch.images is None else _trim_images(batch.images, kept),
        )

    return Tail(kept, trim_all(is_first=True), trim_all(is_first=False))


def _trim_images(images: ImageRows, kept: Tensor) -> ImageRows:
    """Which tokens are of images; their embeddings were needed before."""
    return ImageRows(images.is_image.index_select(0, kept), images.embeddings[:0], images.rows[:0])
