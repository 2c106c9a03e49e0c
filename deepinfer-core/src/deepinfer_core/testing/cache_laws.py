"""Laws of the ops that read or write a paged cache."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from deepinfer_core.testing.case import flatten
from deepinfer_core.testing.cases.attn import (
    PagedBuild,
    attend_in_full,
    make_batch,
    make_meta,
)
from deepinfer_core.testing.cases.kv import make_cache
from deepinfer_core.testing.compare import assert_close, assert_same_bits
from deepinfer_core.testing.trial import NotPossibleError, Trial, judge, run

FAR = 2**31
"""Elements from the start of a cache to where a 32-bit offset has overflowed."""
NUM_BATCHES = 5

Chunk = tuple[int, int, int]
"""(sequence, first position, number of queries)"""


def check_paged_rows(trial: Trial) -> None:
    """A query has the same bits in a prompt, in any chunk of it, decoded alone or in a batch."""
    build, bound, make = trial.case.build, trial.bind(), trial.maker()
    assert isinstance(build, PagedBuild)
    is_varlen = "varlen" in build.features
    size = build.geometry.block_size
    lengths = (1, size + 3, 2 * size, 150)
    counts = [-(-length // size) for length in lengths]
    between = "layers" if "strided_cache" in build.features else None
    caches = make_cache(build.geometry.cache_shape, sum(counts) + 1, between, make)
    blocks = torch.split((make.permutation(sum(counts)) + 1).int(), counts)
    queries = [make.normal(n, build.geometry.num_q_heads, build.geometry.head_dim) for n in lengths]
    extras = build.extras(make)
    if "return_lse" in extras:
        extras["return_lse"] = False

    def attend(chunks: Sequence[Chunk]) -> list[Tensor]:
        requests = [(count, first + count) for _, first, count in chunks]
        tables = torch.zeros(len(chunks), max(counts) + 2, dtype=torch.int32)
        for row, (sequence, _, _) in enumerate(chunks):
            tables[row, : counts[sequence]] = blocks[sequence].cpu()
        bounds = [length + row % 3 for row, (_, length) in enumerate(requests)]
        kwargs = build.arguments(
            torch.cat([queries[s][first : first + n] for s, first, n in chunks]),
            *caches,
            make_meta(requests, bounds, tables, size, make.device),
        )
        parts = [part.flatten(1) for part in flatten(run(bound, kwargs | extras))]
        return list(torch.split(torch.cat(parts, dim=1), [n for _, _, n in chunks]))

    if is_varlen:
        whole = [attend([(s, 0, n)])[0] for s, n in enumerate(lengths)]
    else:
        whole = [
            torch.cat([attend([(s, p, 1)])[0] for p in range(n)]) for s, n in enumerate(lengths)
        ]
    for chunks in _draw_batches(lengths, is_varlen):
        for (sequence, first, count), part in zip(chunks, attend(chunks), strict=True):
            what = f"queries {first} to {first + count} of {lengths[sequence]}, batch {chunks}"
            assert_same_bits(part, whole[sequence][first : first + count], what)


def check_paged_far(trial: Trial) -> None:
    """Blocks may lie farther in a cache than 32 bits can count.

    Raises:
        NotPossibleError: the machine cannot hold such a cache.
    """
    build, make = trial.case.build, trial.maker()
    assert isinstance(build, PagedBuild)
    near = make_batch(build, build.requests, make)
    is_strided = "strided_cache" in build.features
    caches, shift = _far_caches(near["k_cache"], near["v_cache"], is_strided=is_strided)
    tables = near["meta"].block_tables
    meta = replace(near["meta"], block_tables=torch.where(tables > 0, tables + shift, 0))
    extras = build.extras(make)
    kwargs = build.arguments(near["q"], caches["k_cache"], caches["v_cache"], meta)
    o = flatten(run(trial.bind(), kwargs | extras))[0]
    assert_close(o, attend_in_full(near, build, extras)[0], trial.numerics, "o")


def check_store_far(trial: Trial) -> None:
    """Slots may lie farther in a cache than 32 bits can count.

    Raises:
        NotPossibleError: the machine cannot hold such a cache.
    """
    near = trial.call(max(trial.case.token_counts))
    is_latent = near.kwargs["v_cache"] is None
    k = near.kwargs["k_cache"]
    v = k if is_latent else near.kwargs["v_cache"]
    caches, shift = _far_caches(k, v, is_strided="strided_cache" in trial.case.features)
    if is_latent:
        del caches["v_cache"]
    slots = near.kwargs["slot_mapping"]
    moved = torch.where(slots >= 0, slots + shift * k.shape[1], slots)
    run(trial.bind(), {**near.kwargs, **caches, "slot_mapping": moved})
    judge([cache[shift:] for cache in caches.values()], trial.numerics, near)


def _far_caches(k: Tensor, v: Tensor, *, is_strided: bool) -> tuple[dict[str, Tensor], int]:
    """Caches whose last blocks are those given; only these and block 0 are ever touched.

    Returns:
        The caches by argument name, and the number of blocks before the copies.
    """
    block = k.shape[1:]
    # Strided caches lie in one pool, which takes half the memory.
    num_sides = 2 if is_strided else 1
    shift = FAR // (num_sides * math.prod(block)) + 1
    shape = (shift + k.shape[0], num_sides, *block)
    try:
        # Pages of fresh memory that are never touched are never backed.
        pools = [k.new_empty(shape) for _ in range(2 // num_sides)]
    except RuntimeError as error:
        wanted = 2 // num_sides * math.prod(shape) * k.element_size()
        raise NotPossibleError(f"cannot allocate {wanted:,} bytes") from error
    caches = {"k_cache": pools[0][:, 0], "v_cache": pools[-1][:, -1]}
    for far, near in zip(caches.values(), (k, v), strict=True):
        far[shift:] = near
        far[0] = near[0]
    return caches, shift


def _draw_batches(lengths: Sequence[int], is_varlen: bool) -> list[list[Chunk]]:
    draw = random.Random(0)
    batches = []
    for _ in range(NUM_BATCHES):
        chunks = []
        for _ in range(draw.choice((1, 2, 5, 17))):
            sequence = draw.randrange(len(lengths))
            count = draw.choice((1, 1, 1, 2, 5, 8, 17, 64)) if is_varlen else 1
            count = min(count, lengths[sequence])
            chunks.append((sequence, draw.randint(0, lengths[sequence] - count), count))
        batches.append(chunks)
    return batches
