"""Cases of speculative decoding: how many drafts agree from the first on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes

INTS = ("int32",)


def verify_cases(sizes: Sizes) -> Sequence[Case]:
    return [Case(f"depth{k}", partial(_verify, k), dtypes=INTS) for k in (1, 5, 8)]


def _verify(depth: int, make: Maker, num_requests: int) -> Call:
    # Few different ids, so that agreement by luck behind a rejected draft is common.
    drawn = make.integers(0, 2, num_requests, depth, dtype=torch.int32)
    drafts = make.integers(-1, 2, num_requests, depth, dtype=torch.int32)
    expected = [
        next((i for i, (a, b) in enumerate(zip(d, t, strict=True)) if a != b), depth)
        for d, t in zip(drafts.tolist(), drawn.tolist(), strict=True)
    ]
    kwargs = {"draft_ids": drafts, "token_ids": drawn}
    return Call(kwargs, [torch.tensor(expected, dtype=torch.int32)])


OPS = {"spec.verify": OpCases(verify_cases, rows=("draft_ids", "token_ids"))}
