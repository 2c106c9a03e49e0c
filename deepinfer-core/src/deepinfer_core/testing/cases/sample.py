"""Cases of the sampling ops.

Which token is drawn is a matter of bits: the fixed-point sums of top_p and the counter-based noise
are defined by the reference, which its own tests check against the literature. Here kernels are
held to the reference's answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.ops.reference import sample
from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, flatten, wide

VOCAB = 331
WIDE = 5000
"""A vocabulary for which implementations may take other ways than for a small one."""
NUM_SLOTS = 80
FLOAT = ("float32",)


def mask_cases(sizes: Sizes) -> Sequence[Case]:
    return [Case("all-rows", _mask, dtypes=FLOAT)]


def penalties_cases(sizes: Sizes) -> Sequence[Case]:
    return [Case("all", _penalties, dtypes=FLOAT)]


def stages_cases(sizes: Sizes) -> Sequence[Case]:
    options: dict[str, set[str]] = {
        "temperature": set(),
        "min_p": {"min_p"},
        "top_k": {"top_k"},
        "top_p": {"top_p"},
        "all": {"min_p", "top_k", "top_p"},
        "candidates": {"min_p", "top_k", "top_p", "max_top_k"},
    }
    return [
        Case(name, partial(_stages, frozenset(used)), dtypes=FLOAT)
        for name, used in options.items()
    ] + [Case("wide", partial(_stages, frozenset({"top_p"}), vocab_size=WIDE), dtypes=FLOAT)]


def draw_cases(sizes: Sizes) -> Sequence[Case]:
    return [
        Case("greedy", partial(_draw, False, False), dtypes=FLOAT),
        Case("seeded", partial(_draw, True, False), dtypes=FLOAT),
        Case("candidates", partial(_draw, True, True), dtypes=FLOAT),
        Case("masked", partial(_draw, True, False, masked=0.9), dtypes=FLOAT),
        Case("wide", partial(_draw, True, False, vocab_size=WIDE), dtypes=FLOAT),
        Case("wide-greedy", partial(_draw, False, False, vocab_size=WIDE), dtypes=FLOAT),
    ]


def logprobs_cases(sizes: Sizes) -> Sequence[Case]:
    return [Case(f"top{count}", partial(_logprobs, count), dtypes=FLOAT) for count in (0, 5)]


def _mask(make: Maker, num_tokens: int) -> Call:
    logits = make.normal(num_tokens, VOCAB)
    words = -(-VOCAB // 32)
    bitmask = make.integers(-(2**31), 2**31, num_tokens, words, dtype=torch.int32)
    token = torch.arange(VOCAB)
    allowed = (bitmask.cpu()[:, token // 32] >> (token % 32)) & 1
    expected = wide(logits).masked_fill(allowed == 0, -float("inf"))
    kwargs = {"logits": logits, "bitmask": bitmask}
    return Call(kwargs, [expected], writes=frozenset({"logits"}))


def _penalties(make: Maker, num_tokens: int) -> Call:
    logits = make.normal(num_tokens, VOCAB)
    prompt_mask = make.integers(0, 2, NUM_SLOTS, VOCAB, dtype=torch.bool)
    counts = make.integers(0, 3, NUM_SLOTS, VOCAB, dtype=torch.int32)
    slots = make.permutation(NUM_SLOTS)[:num_tokens]
    repetition, presence, frequency = (
        make.integers(low, 9, num_tokens, dtype=torch.int64).float() / 4 for low in (1, -8, -8)
    )
    x, seen = wide(logits), wide(counts[slots])
    is_known = prompt_mask[slots].cpu() | (seen > 0)
    factor = wide(repetition).unsqueeze(1)
    x = torch.where(is_known, torch.where(x > 0, x / factor, x * factor), x)
    x = x - wide(frequency).unsqueeze(1) * seen - wide(presence).unsqueeze(1) * (seen > 0)
    kwargs = {
        "logits": logits,
        "prompt_mask": prompt_mask,
        "counts": counts,
        "slots": slots,
        "repetition": repetition,
        "presence": presence,
        "frequency": frequency,
    }
    return Call(kwargs, [x], writes=frozenset({"logits"}))


def _stages(used: frozenset[str], make: Maker, num_tokens: int, *, vocab_size: int = VOCAB) -> Call:
    kwargs: dict[str, Any] = {
        "logits": make.normal(num_tokens, vocab_size, scale=3.0),
        "temperature": make.normal(num_tokens).abs() + 0.3,
        "min_p": make.normal(num_tokens).abs().clamp(max=1.0) * 0.2,
        "top_k": make.integers(1, 20, num_tokens, dtype=torch.int64),
        "top_p": 1 - make.normal(num_tokens).abs().clamp(max=0.9),
        "max_top_k": 20,
    }
    for name in ("min_p", "top_k", "top_p", "max_top_k"):
        if name not in used:
            kwargs[name] = None
    return _as_reference("stages", kwargs)


def _draw(
    seeded: bool,
    has_candidates: bool,
    make: Maker,
    num_tokens: int,
    *,
    vocab_size: int = VOCAB,
    masked: float = 0.0,
) -> Call:
    width = 24 if has_candidates else vocab_size
    # Rounded, so that ties are common.
    logits = (make.normal(num_tokens, width, scale=2.0) * 4).round() / 4
    if masked:
        dice = make.integers(0, 1000, num_tokens, width, dtype=torch.int32)
        logits = logits.masked_fill(dice < 1000 * masked, -float("inf"))
    kwargs: dict[str, Any] = {"logits": logits}
    if has_candidates:
        picks = [make.permutation(VOCAB)[:width] for _ in range(num_tokens)]
        empty = torch.empty(0, width, dtype=torch.int64, device=make.device)
        kwargs["token_ids"] = torch.stack(picks) if picks else empty
    if seeded:
        kwargs["seeds"] = make.integers(-(2**62), 2**62, num_tokens, dtype=torch.int64)
        kwargs["sample_indices"] = make.integers(0, 8, num_tokens, dtype=torch.int64)
        kwargs["positions"] = make.integers(0, 2**20, num_tokens, dtype=torch.int64)
    return _as_reference("draw", kwargs)


def _logprobs(count: int, make: Maker, num_tokens: int) -> Call:
    # Distinct within a row, so that ranks have one truth.
    order = torch.stack(
        [make.permutation(VOCAB) for _ in range(num_tokens)]
        or [torch.empty(0, VOCAB, device=make.device)]
    ).view(num_tokens, VOCAB)
    logits = order.float() / 32
    token_ids = make.integers(0, VOCAB, num_tokens, dtype=torch.int32)
    all_logprobs = wide(logits).log_softmax(dim=-1)
    chosen = token_ids.cpu().long().unsqueeze(1)
    ranks = VOCAB - order.cpu().long().gather(1, chosen).squeeze(1)
    top = all_logprobs.topk(count, dim=-1)
    expected = [
        all_logprobs.gather(1, chosen).squeeze(1),
        ranks.int(),
        top.indices.int(),
        top.values,
    ]
    kwargs = {"logits": logits, "token_ids": token_ids, "num_logprobs": count}
    return Call(kwargs, expected)


def _as_reference(name: str, kwargs: dict[str, Any]) -> Call:
    """Expect what the reference gives, on the CPU."""
    on_cpu = {
        key: value.cpu().clone() if isinstance(value, Tensor) else value
        for key, value in kwargs.items()
    }
    expected = [
        wide(output) if output.is_floating_point() else output
        for output in flatten(getattr(sample, name)(**on_cpu))
    ]
    writes = frozenset({"logits"}) if name == "stages" else frozenset[str]()
    return Call(kwargs, expected, writes=writes)


OPS = {
    "sample.mask": OpCases(mask_cases, rows=("logits", "bitmask")),
    "sample.penalties": OpCases(
        penalties_cases, rows=("logits", "slots", "repetition", "presence", "frequency")
    ),
    "sample.stages": OpCases(
        stages_cases, rows=("logits", "temperature", "min_p", "top_k", "top_p")
    ),
    "sample.draw": OpCases(
        draw_cases, rows=("logits", "token_ids", "seeds", "sample_indices", "positions")
    ),
    "sample.logprobs": OpCases(logprobs_cases, rows=("logits", "token_ids")),
}
