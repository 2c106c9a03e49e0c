"""Cases of the n-gram memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, wide

VOCAB = 1000
EPS = 1e-20
PRIMES = ((53, 59), (61, 67), (71, 73))


def lookup_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for width in (64, 40):
        shape = {"row_width": sizes.pick("row_width", width)}
        for features in (frozenset[str](), frozenset({"quantized"})):
            name = "-".join((*features, f"{width}"))
            cases.append(Case(name, partial(_lookup, width, features), features, shape))
    return cases


def gate_cases(sizes: Sizes) -> Sequence[Case]:
    cases = []
    for num_streams, hidden_size in ((4, 64), (3, 20)):
        n, size = sizes.pick("hc_mult", num_streams), sizes.pick("hidden_size", hidden_size)
        shape = {"hc_mult": n, "hidden_size": size}
        for skips in (False, True):
            name = f"{n}x{size}-skip" if skips else f"{n}x{size}"
            cases.append(Case(name, partial(_gate, n, size, skips), sizes=shape))
    return cases


def _lookup(width: int, features: frozenset[str], make: Maker, num_tokens: int) -> Call:
    num_rows = sum(map(sum, PRIMES))
    tokens = make.integers(0, VOCAB, num_tokens, len(PRIMES) + 1, dtype=torch.int64)
    # As large as products of 63 bits allow.
    top = (2**63 - 1) // VOCAB
    multipliers = [top - 2, top // 3, 12345678901, top // 7]
    table = make.normal(num_rows, width, dtype=torch.float32)
    scales = None
    numbers = table.to(make.dtype)
    if "quantized" in features:
        groups = -(-width // 32)
        exponents = make.integers(120, 130, num_rows, groups, dtype=torch.int32).to(torch.uint8)
        scales = exponents.view(torch.float8_e8m0fnu)
        table = table.to(torch.float8_e4m3fn)
        factors = torch.exp2(exponents.double() - 127).repeat_interleave(32, dim=1)
        numbers = wide(table.float()) * factors[:, :width].cpu()
    else:
        table = numbers
    expected = []
    for row in tokens.tolist():
        rolled, first, parts = row[0] * multipliers[0], 0, []
        for place, primes in enumerate(PRIMES, start=1):
            rolled ^= row[place] * multipliers[place]
            for prime in primes:
                parts.append(wide(numbers[first + rolled % prime]))
                first += prime
        expected.append(torch.cat(parts))
    kwargs = {
        "tokens": tokens,
        "multipliers": torch.tensor(multipliers, device=make.device),
        "primes": torch.tensor(PRIMES, device=make.device),
        "table": table,
        "scales": scales,
        "out_dtype": make.dtype,
    }
    empty = torch.empty(0, 6 * width, dtype=torch.float64)
    return Call(kwargs, [torch.stack(expected) if expected else empty])


def _gate(n: int, size: int, skips: bool, make: Maker, num_tokens: int) -> Call:
    streams, keys = make.normal(num_tokens, n, size), make.normal(num_tokens, n, size)
    values = make.rows(num_tokens, size)
    q_weight, k_weight = make.normal(n, size), make.normal(n, size)
    skip = None
    if skips:
        skip = make.integers(0, 2, num_tokens, dtype=torch.int32).bool()
    x, k = wide(streams), wide(keys)

    def normal(rows: Tensor) -> Tensor:
        return rows * torch.rsqrt(rows.square().mean(dim=2, keepdim=True) + EPS)

    dots = (normal(x) * wide(q_weight) * normal(k) * wide(k_weight)).sum(dim=2) * size**-0.5
    gates = (dots.sign() * dots.abs().clamp(min=1e-6).sqrt()).sigmoid()
    if skip is not None:
        gates[skip.cpu()] = 0.0
    out = x + gates.unsqueeze(2) * wide(values).unsqueeze(1)
    kwargs = {
        "streams": streams,
        "keys": keys,
        "values": values,
        "q_weight": q_weight,
        "k_weight": k_weight,
        "eps": EPS,
        "skip": skip,
    }
    return Call(kwargs, [out])


OPS = {
    "engram.lookup": OpCases(lookup_cases, rows=("tokens",)),
    "engram.gate": OpCases(gate_cases, rows=("streams", "keys", "values", "skip")),
}
