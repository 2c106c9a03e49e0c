"""`DecodeGraphs`: steps of one token per request, recorded once per size and launched as a whole.

Owns the tensors that recorded work reads and writes. A step is copied into them, filled up to the
next size with tokens that are of no request: they read the null block and write nothing. Knows no
plan and no sampling.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from deepinfer_core.models.interface import Model
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.registry import OpChoice
from deepinfer_core.ops.spec import OP_SPECS
from deepinfer_core.plugin_api.device import CapturedGraph, DeviceRuntime
from deepinfer_core.runtime.batch import AttentionBatch, ForwardBatch
from deepinfer_core.runtime.recorded_sizes import RecordedSizes

logger = logging.getLogger(__name__)

MAX_SIZE = 256
"""Larger steps take so long that launching them op by op hides behind the work."""
MAX_RECORDING_S = 10.0
"""In all, without the time in which kernels are compiled; from then on larger sizes that are
recorded serve smaller steps, too."""
MAX_AHEAD_S = 10.0
"""For recording before the first request; what is left is recorded when it is used."""


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes worth recording: powers of two, then multiples of 8 and of 16."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, MAX_SIZE + 1, 16)]
    most = min(max_num_seqs, MAX_SIZE)
    return [size for size in sizes if size < most] + [most]


def ops_that_need_the_host(choices: Iterable[OpChoice]) -> list[str]:
    """Ops of steps without chunks whose kernels cannot be recorded; empty: all can."""
    return sorted(
        {
            f"{choice.op} ({choice.provider})"
            for choice in choices
            if not choice.op.startswith("sample.")
            and OP_SPECS[choice.op].runs_in != "chunks"
            and "graph_safe" not in choice.kernel.caps.features
        }
    )


class UnsafeOpsError(Exception):
    """A step was to be recorded, and some of its ops cannot be."""

    def __init__(self, ops: list[str]) -> None:
        super().__init__(", ".join(ops))


class DecodeGraphs:
    """Records a model's forward, up to the logits, for each size when it is first used.

    Args:
        max_num_seqs: most requests of a step.
        max_len: most tokens of a request.
        earlier: what earlier runs recorded; what this one records is added.
        find_unsafe: ops whose kernels cannot be recorded, now: one that does not compile gives way
            to another when it is first called.
    """

    def __init__(
        self,
        model: Model,
        device: DeviceRuntime,
        *,
        max_num_seqs: int,
        max_len: int,
        earlier: RecordedSizes | None = None,
        find_unsafe: Callable[[], list[str]] = list,
    ) -> None:
        self._model, self._device, self._max_len = model, device, max_len
        self._earlier, self._find_unsafe = earlier, find_unsafe
        self._sizes = graph_sizes(max_num_seqs)
        self._batch: ForwardBatch | None = None
        """Of the largest size; those of smaller ones are its first rows."""
        self._recorded: dict[int, tuple[CapturedGraph, list[Tensor]]] = {}
        self._refused: set[int] = set()
        self._recording_s = 0.0

    def logits(self, batch: ForwardBatch) -> Tensor | None:
        """[B, V] of a step of B requests with one token each; valid until the next call.

        None, and the step is to run op by op, if there is no memory to record its size.
        """
        count = len(batch.input_ids)
        size = self._size_for(count)
        if size is None:
            return None
        static = self._filled(batch, size)
        if size not in self._recorded and not self._record(static):
            return None
        graph, results = self._recorded[size]
        graph.replay()
        return results[0][:count]

    @torch.inference_mode()
    def record_ahead(self, like: ForwardBatch) -> None:
        """Record what earlier runs recorded, before there are requests. Blocks, not for long.

        Args:
            like: any step of this runner; of it only shapes, device and caches count.
        """
        if self._earlier is None or not self._earlier.sizes:
            return
        self._batch = self._allocate(like)
        begun, slowest_s = time.perf_counter(), 0.0
        for size in self._earlier.sizes:
            start = time.perf_counter()
            if size in self._sizes and start - begun + slowest_s < MAX_AHEAD_S:
                self._record(_first_rows(self._batch, size))
                slowest_s = max(slowest_s, time.perf_counter() - start)
        logger.info("recorded steps ahead in %.1f s", time.perf_counter() - begun)

    def rehearse(self, batch: ForwardBatch) -> Tensor:
        """What `logits` would give, by the same kernels on the same tensors, launched op by op.

        For tools that look at single ops.
        """
        count = len(batch.input_ids)
        return self._forward(self._filled(batch, self._least_size(count)))[:count]

    def fits(self, batch: ForwardBatch) -> bool:
        """Whether a step is of one token per request, few enough, of text, and replays nothing."""
        meta = batch.attention.groups[0]
        is_plain = batch.images is None and meta.window_starts is None
        if not is_plain or meta.max_query_len != 1 or meta.num_reqs > self._sizes[-1]:
            return False
        return self._size_for(meta.num_reqs) is not None

    def _least_size(self, count: int) -> int:
        return self._sizes[bisect_left(self._sizes, count)]

    def _size_for(self, count: int) -> int | None:
        """The size that a step of `count` tokens is filled up to; None: it runs op by op."""
        size = self._least_size(count)
        if size in self._recorded:
            return size
        if self._recording_s < MAX_RECORDING_S:
            return None if size in self._refused else size
        return min((larger for larger in self._recorded if larger > size), default=None)

    def _record(self, static: ForwardBatch) -> bool:
        """Whether there was memory for it."""
        size, results = len(static.input_ids), list[Tensor]()
        begun_s, compiling_s = time.perf_counter(), 0.0

        def forward() -> None:
            nonlocal compiling_s
            results[:] = [self._forward(static)]
            compiling_s = compiling_s or time.perf_counter() - begun_s
            if unsafe := self._find_unsafe():
                raise UnsafeOpsError(unsafe)  # before the run that would be recorded

        try:
            graph = self._device.capture(forward)
        except UnsafeOpsError as error:
            logger.warning("steps are launched op by op: %s cannot be recorded", error)
            self._refused.update(self._sizes)
            return False
        except torch.OutOfMemoryError as error:
            logger.warning("steps of %d tokens run op by op: %s", size, error)
            self._refused.add(size)
            return False
        self._recorded[size] = graph, results
        self._recording_s += time.perf_counter() - begun_s - compiling_s
        if self._earlier is not None:
            self._earlier.add(size)
        logger.info("recorded a step of %d tokens", size)
        return True

    def _forward(self, static: ForwardBatch) -> Tensor:
        metas = [replace(meta, plans={}) for meta in static.attention.groups]
        attention = replace(static.attention, groups=metas, handed_on={})
        hidden_states = self._model.forward(replace(static, attention=attention))
        return self._model.compute_logits(hidden_states)

    def _filled(self, batch: ForwardBatch, size: int) -> ForwardBatch:
        """The tensors of a size, with a step copied into them."""
        if self._batch is None:
            self._batch = self._allocate(batch)
        static = _first_rows(self._batch, size)
        _copy(batch, static, len(batch.input_ids))
        return static

    def _allocate(self, like: ForwardBatch) -> ForwardBatch:
        """The largest size, with tables for the longest request, of tokens that are of none."""
        size, device = self._sizes[-1], like.input_ids.device
        positions = torch.zeros(size, dtype=torch.int64, device=device)

        def ints(*shape: int, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=torch.int32, device=device)

        bounds = torch.arange(size + 1, dtype=torch.int32, device=device)
        seq_lens = ints(size, value=1)
        groups = [
            AttentionMeta(
                cu_seqlens_q=bounds,
                seq_lens=seq_lens,
                block_tables=ints(size, -(-self._max_len // meta.block_size)),
                slot_mapping=ints(size, value=-1),
                positions=positions,
                block_size=meta.block_size,
                query_lens=[1] * size,
                seq_len_bounds=[self._max_len] * size,
            )
            for meta in like.attention.groups
        ]
        history = None if like.history is None else ints(size, like.history.shape[1], value=-1)
        attention = AttentionBatch(groups, like.attention.cache_groups, like.attention.caches)
        return ForwardBatch(ints(size), positions, attention, history=history)


def _first_rows(batch: ForwardBatch, size: int) -> ForwardBatch:
    groups = [
        replace(
            meta,
            cu_seqlens_q=meta.cu_seqlens_q[: size + 1],
            seq_lens=meta.seq_lens[:size],
            block_tables=meta.block_tables[:size],
            slot_mapping=meta.slot_mapping[:size],
            positions=meta.positions[:size],
            query_lens=meta.query_lens[:size],
            seq_len_bounds=meta.seq_len_bounds[:size],
        )
        for meta in batch.attention.groups
    ]
    return replace(
        batch,
        input_ids=batch.input_ids[:size],
        positions=batch.positions[:size],
        attention=replace(batch.attention, groups=groups),
        history=None if batch.history is None else batch.history[:size],
    )


def _copy(source: ForwardBatch, target: ForwardBatch, count: int) -> None:
    """Fill the first rows with a step, and the others with tokens of no request."""
    pairs = [
        (target.input_ids, source.input_ids, 0),
        (target.positions, source.positions, 0),
        (target.attention.groups[0].seq_lens, source.attention.groups[0].seq_lens, 1),
    ]
    if target.history is not None and source.history is not None:
        pairs.append((target.history, source.history, -1))
    for into, meta in zip(target.attention.groups, source.attention.groups, strict=True):
        width = meta.block_tables.shape[1]
        pairs.append((into.block_tables[:, :width], meta.block_tables, 0))
        pairs.append((into.slot_mapping, meta.slot_mapping, -1))
    for into_rows, rows, _ in pairs:
        into_rows[:count].copy_(rows)
    if count < len(target.input_ids):
        for into_rows, _, filler in pairs:
            into_rows[count:].fill_(filler)
