"""Hyper-connections, in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_ascend.emulation import play
from deepinfer_ascend.emulation.registry import emulates, require


@emulates("npu_mhc_pre")
def mhc_pre(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    *,
    gamma: Tensor | None = None,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
    out_flag: int = 0,
    inner_precise: int = 0,
) -> tuple[Tensor, ...]:
    del inner_precise
    num_tokens, n, size = x.shape
    require("mhc" in play.soc().features and gamma is None, "a 950, and no gamma")
    require(x.dtype in play.halves() and num_tokens > 0, "streams in 16 bits, at least one")
    require(n in (4, 6, 8) and size % 16 == 0, "4, 6 or 8 streams of 16 times n numbers")
    require(phi.dtype == alpha.dtype == bias.dtype == torch.float32, "float32 coefficients")
    wide = x.float().flatten(1)
    inverse_rms = torch.rsqrt(wide.square().mean(1, keepdim=True) + norm_eps)
    raw = wide @ phi.T
    z = raw * inverse_rms
    scales = alpha.repeat_interleave(torch.tensor([n, n, n * n]))
    pre, post, mix = torch.split(z * scales + bias, [n, n, n * n], dim=1)
    pre = pre.sigmoid() + hc_eps
    u = (x.float() * pre.unsqueeze(2)).sum(1).to(x.dtype)
    others = (inverse_rms[:, 0], raw, pre) if out_flag else (torch.empty(0),) * 3
    return u, 2 * post.sigmoid(), mix.reshape(-1, n, n), *others


@emulates("npu_mhc_sinkhorn")
def mhc_sinkhorn(
    x: Tensor, *, eps: float = 1e-6, num_iters: int = 20, out_flag: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    require("mhc" in play.soc().features and out_flag == 0, "a 950, and no steps of between")
    require(x.dtype == torch.float32 and x.shape[-1] in (4, 6, 8), "float32 of 4, 6 or 8 streams")
    y = x.softmax(-1) + eps
    y = y / (y.sum(-2, keepdim=True) + eps)
    for _ in range(num_iters - 1):
        y = y / (y.sum(-1, keepdim=True) + eps)
        y = y / (y.sum(-2, keepdim=True) + eps)
    return y, torch.empty(0), torch.empty(0)


@emulates("npu_mhc_post")
def mhc_post(x: Tensor, h_res: Tensor | None, h_out: Tensor, h_post: Tensor) -> Tensor:
    require(x.shape[1] == 4 and x.shape[2] % 128 == 0, "4 streams of 128 times n numbers")
    require(x.dtype in play.halves() and x.dtype == h_out.dtype, "16 bits of one kind")
    require(h_res is not None and h_res.dtype == h_post.dtype == torch.float32, "float32 weights")
    assert h_res is not None
    mixed = torch.einsum("tjk,tjd->tkd", h_res, x.float())
    return (mixed + h_post.unsqueeze(2) * h_out.float().unsqueeze(1)).to(x.dtype)
