"""Cases of sparse attention: which tokens are picked, and attention to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.records import make_record
from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, wide
from deepinfer_core.testing.cases.attn import Geometry, PagedBuild, make_batch
from deepinfer_core.testing.cases.kv import make_cache
from deepinfer_core.testing.cases.records import NAN_BYTE, draw, in_pages, pack_exactly

NUM_BLOCKS = 9
KINDS: Sequence[tuple[tuple[str, ...], int, Literal["", "kept", "given"], str | None]] = (
    ((), 1, "", None),
    (("strided_cache",), 1, "", None),
    (("strided_cache",), 4, "", None),
    (("candidates",), 1, "kept", None),
    (("candidates", "strided_cache"), 4, "given", None),
    (("records", "strided_cache"), 1, "", "132"),
    (("records", "strided_cache"), 4, "", "68"),
)
"""Features, tokens per row (with several, the rest of a block is the stride to the next), what is
done about candidate blocks, and which records the keys are."""
ROWS_PER_BLOCK, NUM_CANDIDATES = 4, 5


@dataclass(frozen=True, slots=True)
class IndexBuild(PagedBuild):
    """Builds a call of `index.select` whose scores are small integers: exact, with many ties."""

    top_k: int = 0
    tokens_per_row: int = 1
    candidates: Literal["", "kept", "given"] = ""
    """Blocks of rows: picked beside the tokens, or given."""
    record_name: str | None = None

    def __call__(self, make: Maker, num_tokens: int) -> Call:
        batch = make_batch(self, self.requests if num_tokens else [], make)
        kwargs = self.arguments(**batch)

        def truth() -> Sequence[Tensor]:
            return _pick(self, kwargs, batch)

        return Call(kwargs, truth)

    def arguments(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, meta: AttentionMeta
    ) -> dict[str, Any]:
        for numbers in (q, k_cache):
            is_small = numbers.abs() < 100  # the rest is garbage, and stays
            numbers.copy_(torch.where(is_small, numbers.clamp(-2, 2).round(), numbers))
        num_rows = k_cache.shape[1] // self.tokens_per_row
        extras: dict[str, Any] = {}
        if self.candidates:
            extras["rows_per_block"] = ROWS_PER_BLOCK
        if self.candidates == "kept":
            extras["num_blocks"] = NUM_CANDIDATES
        if self.candidates == "given":
            extras["blocks"] = _every_other_block(meta.positions, self.tokens_per_row)
        cache = k_cache.squeeze(2)[:, :num_rows]
        if self.record_name is not None:
            record = extras["record"] = make_record(self.record_name, cache.shape[2])
            cache = in_pages(pack_exactly(cache.flatten(0, 1), record), num_rows)
        return {
            "q": q,
            "weights": q[..., 0].float().contiguous(),
            "cache": cache,
            "meta": meta,
            "top_k": self.top_k,
            "tokens_per_row": self.tokens_per_row,
            **extras,
        }

    def extras(self, make: Maker) -> dict[str, Any]:
        return {}


def index_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for num_heads, head_dim, size, top_k in ((16, 32, 16, 24), (3, 20, 5, 2)):
        shape = {
            "num_q_heads": sizes.pick("num_q_heads", num_heads),
            "head_dim": sizes.pick("head_dim", head_dim),
            "top_k": sizes.pick("top_k", top_k),
        }
        geometry = Geometry(shape["num_q_heads"], 1, shape["head_dim"], size)
        k = shape["top_k"]
        batches = {
            "decode": [(1, 1), (1, k), (1, k + 1), (1, 3 * size + 2), (1, 290)],
            "mixed": [(k + 3, k + 3), (1, 33), (5, 50), (40, 60), (1, 1), (9, 150)],
        }
        for batch, requests in batches.items():
            for kind, tokens_per_row, candidates, scheme in KINDS:
                if size % tokens_per_row:
                    continue
                features = frozenset(kind)
                build = IndexBuild(
                    geometry,
                    requests,
                    features,
                    top_k=k,
                    tokens_per_row=tokens_per_row,
                    candidates=candidates,
                    record_name=scheme,
                )
                sizes_text = "x".join(map(str, (*shape.values(), tokens_per_row)))
                name = "-".join((batch, *kind, *filter(None, [candidates, scheme]), sizes_text))
                cases.append(Case(name, build, features, shape, token_counts=(1,), scheme=scheme))
    return cases


def _every_other_block(positions: Tensor, tokens_per_row: int) -> Tensor:
    """[T, 9]: blocks 0, 2, .. with a row that the token sees, and what comes after the last."""
    numbers = torch.arange(0, 18, 2, device=positions.device)
    is_seen = numbers * ROWS_PER_BLOCK < (positions.unsqueeze(1) + 1) // tokens_per_row
    return torch.where(is_seen, numbers, -1).int()


def _pick(build: IndexBuild, kwargs: dict[str, Any], batch: dict[str, Any]) -> tuple[Tensor, ...]:
    """Query by query, key by key, in float64."""
    meta: AttentionMeta = batch["meta"]
    top_k, per_row = build.top_k, build.tokens_per_row
    q, factors = wide(batch["q"]), wide(kwargs["weights"])
    tables = meta.block_tables.cpu().long()
    chosen = torch.full((len(q), top_k), -1, dtype=torch.int32)
    kept = torch.full((len(q), NUM_CANDIDATES), -1, dtype=torch.int32)
    owner = torch.repeat_interleave(torch.tensor(meta.query_lens, dtype=torch.int64))
    for row, position in enumerate(meta.positions.tolist()):
        seen = torch.arange((position + 1) // per_row)
        if "blocks" in kwargs:
            seen = seen[torch.isin(seen // ROWS_PER_BLOCK, kwargs["blocks"][row].cpu())]
        firsts = seen * per_row
        blocks = tables[owner[row], firsts // meta.block_size]
        offsets = firsts % meta.block_size // per_row
        keys = wide(batch["k_cache"][blocks, offsets].squeeze(1))
        scores = ((q[row] @ keys.T).relu() * factors[row].unsqueeze(1)).sum(dim=0).tolist()
        best = sorted(range(len(seen)), key=lambda key: (-scores[key], key))[:top_k]
        slots = blocks * (meta.block_size // per_row) + offsets
        chosen[row, : len(best)] = slots[sorted(best)].int()
        worth: dict[int, float] = {}
        for key, score in enumerate(scores):
            block = key // ROWS_PER_BLOCK
            worth[block] = max(score, worth.get(block, score))
        if worth:
            worth[max(worth)] = float("inf")
        best = sorted(sorted(worth, key=lambda block: (-worth[block], block))[:NUM_CANDIDATES])
        kept[row, : len(best)] = torch.tensor(best, dtype=torch.int32)
    return (chosen, kept) if build.candidates == "kept" else (chosen,)


def sparse_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for num_heads, head_dim, value_dim, num_rows in ((16, 80, 64, 24), (3, 26, 20, 5)):
        shape = {
            "num_q_heads": sizes.pick("num_q_heads", num_heads),
            "head_dim": sizes.pick("head_dim", head_dim),
            "value_dim": sizes.pick("value_dim", value_dim),
        }
        kinds: list[tuple[str, set[str], bool]] = [
            ("one", set(), False),
            ("two", set(), True),
            ("strided", {"strided_cache"}, True),
            ("sinks", {"sinks"}, True),
            ("lse", {"lse_out"}, False),
            ("all", {"strided_cache", "sinks", "lse_out"}, True),
        ]
        for kind, features, is_double in kinds:
            build = partial(_sparse, shape, frozenset(features), num_rows, is_double)
            name = "-".join((kind, "x".join(map(str, (*shape.values(), num_rows)))))
            cases.append(Case(name, build, frozenset(features), shape))
        for scheme in ("656", "584", "528", "528+288"):
            record_build = partial(_sparse_records, scheme, shape, num_rows)
            features = {"records", "strided_cache", "sinks"}
            name = "-".join(("records", scheme, "x".join(map(str, (*shape.values(), num_rows)))))
            cases.append(Case(name, record_build, frozenset(features), shape, scheme=scheme))
    return cases


def _sparse_records(
    scheme: str, shape: dict[str, int], num_rows: int, make: Maker, num_tokens: int
) -> Call:
    """Two caches of records, in pages of an odd size."""
    kwargs = _sparse(shape, frozenset({"sinks"}), num_rows, True, make, num_tokens).kwargs
    names = scheme.split("+")
    sources = []
    for role, name in (("", names[0]), ("extra_", names[-1])):
        num_blocks, size, width = kwargs[f"{role}cache"].shape
        record = kwargs[f"{role}record"] = make_record(name, width, width // 9 * 2)
        data, rows = draw(make, num_blocks * size, record)
        cache = kwargs[f"{role}cache"] = in_pages(data, size)
        cache[0] = cache[-1] = NAN_BYTE
        sources.append((rows.view(num_blocks, size, width), kwargs[f"{role}rows"].cpu()))
    o, _ = _attend_rows(wide(kwargs["q"]), sources, kwargs)
    return Call(kwargs, [o])


def _sparse(
    shape: dict[str, int],
    features: frozenset[str],
    num_rows: int,
    is_double: bool,
    make: Maker,
    num_tokens: int,
) -> Call:
    size = 4
    geometry = {"block_size": size, "num_kv_heads": 1, "head_dim": shape["head_dim"]}
    between = "layers" if "strided_cache" in features else None
    caches = [cache.squeeze(2) for cache in make_cache(geometry, NUM_BLOCKS, between, make)]
    lists = []
    for cache in caches:
        cache[0] = cache[NUM_BLOCKS - 1] = float("nan")
        rows = make.integers(size, (NUM_BLOCKS - 1) * size, num_tokens, num_rows, dtype=torch.int32)
        rows[:, -2:] = -1  # lists of any length end like this
        if num_tokens > 1:
            rows[1] = -1
        lists.append(rows)
    q = make.rows(num_tokens, shape["num_q_heads"], shape["head_dim"])
    sinks = make.normal(shape["num_q_heads"]) if "sinks" in features else None
    kwargs = {
        "q": q,
        "cache": caches[0],
        "rows": lists[0],
        "scale": shape["head_dim"] ** -0.5,
        "value_dim": shape["value_dim"],
        "sinks": sinks,
        "extra_cache": caches[1] if is_double else None,
        "extra_rows": lists[1] if is_double else None,
        "return_lse": "lse_out" in features,
    }
    sources = list(zip(caches, lists, strict=True))[: 2 if is_double else 1]
    o, lse = _attend_rows(wide(q), sources, kwargs)
    return Call(kwargs, [o, lse] if kwargs["return_lse"] else [o])


def _attend_rows(
    q: Tensor, sources: Sequence[tuple[Tensor, Tensor]], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Token by token, in float64."""
    value_dim, sinks = kwargs["value_dim"], kwargs["sinks"]
    o = q.new_zeros(*q.shape[:2], value_dim)
    lse = q.new_full(q.shape[:2], -float("inf"))
    for token, heads in enumerate(q):
        keys = torch.cat(
            [wide(cache.flatten(0, 1)[rows[token][rows[token] >= 0]]) for cache, rows in sources]
        )
        scores = heads @ keys.T * kwargs["scale"]
        if sinks is not None:
            scores = torch.cat([scores, wide(sinks).unsqueeze(1)], dim=1)
        if scores.shape[1]:
            o[token] = scores.softmax(dim=1)[:, : len(keys)] @ keys[:, :value_dim]
            lse[token] = scores.logsumexp(dim=1)
    return o, lse


OPS = {
    "index.select": OpCases(index_cases),
    "attn.sparse_mla": OpCases(sparse_cases, rows=("q", "rows", "extra_rows")),
}
