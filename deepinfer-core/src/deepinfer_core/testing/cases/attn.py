"""Cases of the attention ops, with the hazards of a real cache in every one of them.

Blocks lie in shuffled order; blocks outside every block table, among them those that left a
window, hold nan; slots at or past a request's length and the null block hold large garbage; host
bounds of lengths are sometimes too high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, wide
from deepinfer_core.testing.cases.kv import make_cache

GARBAGE = 2e4
SLACK = 3
"""By how much the host's bound of a length may be too high."""
SOFTCAP = 4.0

Requests = Sequence[tuple[int, int]]
"""(query length, length with the queries) of each request."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of an attention layer and its cache."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def cache_shape(self) -> dict[str, int]:
        return {
            "block_size": self.block_size,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
        }


@dataclass(frozen=True, slots=True)
class PagedBuild:
    """Builds a call of `attn.paged`; its fields are what the batch law needs to know."""

    geometry: Geometry
    requests: Requests
    features: frozenset[str]
    window: int | None = None

    def __call__(self, make: Maker, num_tokens: int) -> Call:
        batch = make_batch(self, self.requests if num_tokens else [], make)
        extras = self.extras(make)
        kwargs = self.arguments(**batch) | extras

        def truth() -> Sequence[Tensor]:
            expected = attend_in_full(batch, self, extras)
            return expected if extras["return_lse"] else expected[:1]

        return Call(kwargs, truth)

    def arguments(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, meta: AttentionMeta
    ) -> dict[str, Any]:
        """What the op is given, but for the extras."""
        kwargs = {"q": q, "k_cache": k_cache, "v_cache": v_cache}
        return {**kwargs, "meta": meta, "scale": self.geometry.scale}

    def keys_and_values(
        self, batch: dict[str, Any], blocks: Tensor, offsets: Tensor, extras: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Of these slots for each query head, [S, H, D] float64, by the op's definition."""
        group = self.geometry.num_q_heads // self.geometry.num_kv_heads
        rows = (wide(batch[name][blocks, offsets]) for name in ("k_cache", "v_cache"))
        k, v = (row.repeat_interleave(group, dim=1) for row in rows)
        return k, v

    def extras(self, make: Maker) -> dict[str, Any]:
        """Arguments of the optional features, and weights."""
        has_sinks = "sinks" in self.features
        return {
            "window": self.window,
            "sinks": make.normal(self.geometry.num_q_heads) if has_sinks else None,
            "softcap": SOFTCAP if "softcap" in self.features else None,
            "return_lse": "lse_out" in self.features,
        }


def paged_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for geometry in _geometries(sizes):
        for batch, requests in batches_around(geometry.block_size).items():
            is_varlen = any(query_len > 1 for query_len, _ in requests)
            for name, features, window in _feature_sets(is_varlen):
                build = PagedBuild(geometry, requests, features, window)
                cases.append(_case(f"{batch}-{name}", build))
    return cases


def merge_cases(sizes: Sizes) -> Sequence[Case]:
    return [
        Case("9x64", lambda make, n: _merge(sizes.pick("head_dim", 64), make, n)),
        Case("9x20", lambda make, n: _merge(sizes.pick("head_dim", 20), make, n)),
    ]


def make_batch(build: PagedBuild, requests: Requests, make: Maker) -> dict[str, Any]:
    """q, caches and meta of a batch, with all hazards."""
    geometry, size = build.geometry, build.geometry.block_size
    bounds = [length + SLACK * (i % 2) for i, (_, length) in enumerate(requests)]
    counts = [-(-bound // size) for bound in bounds]
    between = "layers" if "strided_cache" in build.features else None
    num_blocks = sum(counts) + 3
    k_cache, v_cache = make_cache(geometry.cache_shape, num_blocks, between, make)
    free = (make.permutation(num_blocks - 1) + 1).tolist()
    tables = torch.zeros(len(requests), max(counts, default=0) + 1, dtype=torch.int32)
    for cache in (k_cache, v_cache):
        cache[0] = GARBAGE
    for row, (query_len, length) in enumerate(requests):
        blocks, free = free[: counts[row]], free[counts[row] :]
        tables[row, : counts[row]] = torch.tensor(blocks, dtype=torch.int32)
        gone = 0 if build.window is None else max(0, length - query_len - build.window + 1) // size
        tables[row, :gone] = 0
        free.extend(blocks[:gone])
        sign = 1 if row % 2 else -1
        for cache in (k_cache, v_cache):
            for block, offset in _slots(blocks, length, size):
                cache[block, offset] = sign * GARBAGE
    for cache in (k_cache, v_cache):
        cache[free] = float("nan")
    num_tokens = sum(query_len for query_len, _ in requests)
    q = make.rows(num_tokens, geometry.num_q_heads, geometry.head_dim)
    meta = make_meta(requests, bounds, tables, size, make.device)
    return {"q": q, "k_cache": k_cache, "v_cache": v_cache, "meta": meta}


def make_meta(
    requests: Requests, bounds: Sequence[int], tables: Tensor, block_size: int, device: str
) -> AttentionMeta:
    """The batch of these requests over these block tables."""
    query_lens = [query_len for query_len, _ in requests]
    lengths = [length for _, length in requests]
    spans = [torch.arange(length - query_len, length) for query_len, length in requests]
    positions = torch.cat([*spans, torch.empty(0, dtype=torch.int64)])
    owner = torch.repeat_interleave(torch.tensor(query_lens, dtype=torch.int64))
    slots = tables[owner, positions // block_size] * block_size + positions % block_size
    cumulative = torch.tensor([0, *query_lens]).cumsum(0)
    return AttentionMeta(
        cu_seqlens_q=cumulative.int().to(device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        slot_mapping=slots.int().to(device),
        positions=positions.to(device),
        block_size=block_size,
        query_lens=query_lens,
        seq_len_bounds=list(bounds),
    )


def attend_in_full(
    batch: dict[str, Any], build: PagedBuild, extras: dict[str, Any]
) -> list[Tensor]:
    """o and lse in float64: request by request, all scores at once, keys looked up one by one."""
    meta: AttentionMeta = batch["meta"]
    q, sinks, softcap = wide(batch["q"]), extras.get("sinks"), extras.get("softcap")
    tables, all_positions = meta.block_tables.cpu().long(), meta.positions.cpu()
    nothing = torch.empty(0, dtype=torch.int64)
    outputs = [build.keys_and_values(batch, nothing, nothing, extras)[1]]
    normalisers = [q[:0, :, 0]]
    row = 0
    for request, count in enumerate(meta.query_lens):
        positions = all_positions[row : row + count].unsqueeze(1)
        first = 0 if build.window is None else max(0, int(positions[0]) - build.window + 1)
        seen = torch.arange(first, int(positions[-1]) + 1)
        blocks, offsets = tables[request, seen // meta.block_size], seen % meta.block_size
        k, v = build.keys_and_values(batch, blocks, offsets, extras)
        queries = q[row : row + count, :, : k.shape[2]]
        scores = torch.einsum("thd,shd->ths", queries, k) * build.geometry.scale
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        hidden = seen > positions
        if build.window is not None:
            hidden |= seen <= positions - build.window
        scores = scores.masked_fill(hidden.unsqueeze(1), -float("inf"))
        if sinks is not None:
            sink = wide(sinks).view(1, -1, 1).expand(count, -1, 1)
            scores = torch.cat([scores, sink], dim=2)
        weights = scores.softmax(dim=2)[:, :, : len(seen)]
        outputs.append(torch.einsum("ths,shd->thd", weights, v))
        normalisers.append(scores.logsumexp(dim=2))
        row += count
    return [torch.cat(outputs), torch.cat(normalisers)]


def _geometries(sizes: Sizes) -> list[Geometry]:
    wanted = ((9, 3, 64, 16), (4, 4, 20, 5))
    names = ("num_q_heads", "num_kv_heads", "head_dim", "block_size")
    picked = [
        Geometry(*(sizes.pick(name, size) for name, size in zip(names, row, strict=True)))
        for row in wanted
    ]
    return list(dict.fromkeys(picked))


def batches_around(size: int) -> dict[str, Requests]:
    """Requests around the edges of blocks of this size."""
    return {
        "one-token": [(1, 1)],
        "decode": [(1, 1), (1, size), (1, size + 1), (1, 3 * size + 2), (1, 130), (1, 5)],
        "prefill": [(1, 1), (size, size), (size + 4, size + 4), (33, 33)],
        "chunks": [(9, 40), (size, 2 * size), (3, 290), (1, 2 * size)],
        "mixed": [(1, 33), (3, 3), (5, 50), (40, 60), (1, 1), (9, 16)],
    }


def _feature_sets(is_varlen: bool) -> list[tuple[str, frozenset[str], int | None]]:
    always = {"varlen"} if is_varlen else set()
    sets: list[tuple[str, set[str], int | None]] = [
        ("plain", set(), None),
        ("strided", {"strided_cache"}, None),
        ("window", {"window"}, 7),
        ("wide-window", {"window"}, 40),
        ("sinks", {"sinks"}, None),
        ("softcap", {"softcap"}, None),
        ("lse", {"lse_out"}, None),
        ("all", {"strided_cache", "window", "sinks", "softcap", "lse_out"}, 19),
    ]
    return [(name, frozenset(features | always), window) for name, features, window in sets]


def _case(name: str, build: PagedBuild) -> Case:
    geometry = build.geometry
    shape = {
        "head_dim": geometry.head_dim,
        "num_q_heads": geometry.num_q_heads,
        "num_kv_heads": geometry.num_kv_heads,
    }
    sizes = "x".join(str(size) for size in (*shape.values(), geometry.block_size))
    return Case(f"{name}-{sizes}", build, build.features, shape, token_counts=(1,))


def _slots(blocks: Sequence[int], start: int, block_size: int) -> list[tuple[int, int]]:
    """(block, offset) of the positions from `start` to the end of the last block."""
    end = len(blocks) * block_size
    return [(blocks[p // block_size], p % block_size) for p in range(start, end)]


def _merge(head_dim: int, make: Maker, num_tokens: int) -> Call:
    shape = (num_tokens, 9)
    o1, o2 = make.normal(*shape, head_dim), make.normal(*shape, head_dim)
    lse1, lse2 = (make.normal(*shape, scale=4.0, dtype=torch.float32) for _ in range(2))
    # One side empty, the other, both.
    lse1[:, 0], lse2[:, 1] = -float("inf"), -float("inf")
    lse1[:, 2] = lse2[:, 2] = -float("inf")
    lse = torch.logaddexp(wide(lse1), wide(lse2))
    floor = lse.clamp(min=-1e300)
    w1, w2 = (wide(lse1) - floor).exp(), (wide(lse2) - floor).exp()
    o = wide(o1) * w1.unsqueeze(-1) + wide(o2) * w2.unsqueeze(-1)
    return Call({"o1": o1, "lse1": lse1, "o2": o2, "lse2": lse2}, [o, lse])


OPS = {
    "attn.paged": OpCases(paged_cases),
    "attn.merge": OpCases(merge_cases, rows=("o1", "lse1", "o2", "lse2")),
}
