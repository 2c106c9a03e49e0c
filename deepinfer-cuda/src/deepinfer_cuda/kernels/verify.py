"""How many drafts the target would have drawn itself. A program has a request."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _verify_kernel(
    draft_ptr,
    token_ptr,
    out_ptr,
    draft_stride,
    token_stride,
    num_drafts,
    DRAFTS: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, DRAFTS)
    is_place = places < num_drafts
    draft = tl.load(draft_ptr + request * draft_stride + places, mask=is_place, other=-1)
    token = tl.load(token_ptr + request * token_stride + places, mask=is_place, other=-1)
    agrees = is_place & (draft >= 0) & (draft == token)
    # As many as stand before the first that does not agree.
    tl.store(out_ptr + request, tl.min(tl.where(agrees, num_drafts, places), 0))


def verify(draft_ids: Tensor, token_ids: Tensor) -> Tensor:
    """See `deepinfer_core.ops.specs.spec.verify`."""
    num_requests, num_drafts = draft_ids.shape
    if not num_drafts or not num_requests:
        return torch.zeros(num_requests, dtype=torch.int32, device=draft_ids.device)
    out = torch.empty(num_requests, dtype=torch.int32, device=draft_ids.device)
    draft_ids, token_ids = (
        x if x.stride(1) == 1 else x.contiguous() for x in (draft_ids, token_ids)
    )
    _verify_kernel[(num_requests,)](
        draft_ids,
        token_ids,
        out,
        draft_ids.stride(0),
        token_ids.stride(0),
        num_drafts,
        DRAFTS=triton.next_power_of_2(num_drafts + 1),
        num_warps=1,
    )
    return out
