"""Torch references of the ops of speculative decoding. Contracts: `ops/specs/spec.py`."""

from __future__ import annotations

import torch
from torch import Tensor


def verify(draft_ids: Tensor, token_ids: Tensor) -> Tensor:
    agrees = (draft_ids == token_ids) & (draft_ids >= 0)
    return agrees.to(torch.int32).cumprod(dim=1, dtype=torch.int32).sum(dim=1, dtype=torch.int32)
