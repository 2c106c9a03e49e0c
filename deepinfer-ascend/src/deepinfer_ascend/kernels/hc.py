"""Hyper-connections."""

from __future__ import annotations

import torch
from torch import Tensor


def pre(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm_eps: float,
    eps: float,
    num_iters: int,
    previous: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """See `deepinfer_core.ops.specs.hc.pre`."""
    num_tokens, n, _ = streams.shape
    if not num_tokens:
        some = streams.new_empty(0, n, dtype=torch.float32)
        empty = streams[:, 0], some, some.new_empty(0, n, n)
        return empty if previous is None else (*empty, some)
    u, post_weights, raw, _, _, weights = torch.ops.npu.npu_mhc_pre(
        streams.contiguous(),
        fn,
        scale,
        base,
        norm_eps=norm_eps,
        hc_eps=eps,
        out_flag=int(previous is not None),
    )
    mix, _, _ = torch.ops.npu.npu_mhc_sinkhorn(raw.view(-1, n, n), eps=eps, num_iters=num_iters)
    if previous is None:
        return u, post_weights, mix
    u = (streams.float() * previous.unsqueeze(2)).sum(dim=1).to(streams.dtype)
    return u, post_weights, mix, weights


def post(y: Tensor, streams: Tensor, post: Tensor, mix: Tensor) -> Tensor:
    """See `deepinfer_core.ops.specs.hc.post`."""
    if not y.numel():
        return torch.empty_like(streams)
    mixed: Tensor = torch.ops.npu.npu_mhc_post(
        streams.contiguous(), mix.contiguous(), y.contiguous(), post.contiguous()
    )
    return mixed
