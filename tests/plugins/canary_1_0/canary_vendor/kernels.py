"""Two kernels with the signatures of major 1."""

import torch


class Thing:
    """What the other records point at."""


def rms(x, weight, eps, residual=None):
    r = x if residual is None else x + residual
    y = r.float() / (r.float().pow(2).mean(-1, keepdim=True) + eps).sqrt()
    y = y.to(x.dtype)
    return (y if weight is None else y * weight), (None if residual is None else r)


def fake_rms(x, weight, eps, residual=None):
    return torch.empty_like(x), (None if residual is None else torch.empty_like(x))


def plan(problem, meta):
    return (problem.op, meta)


def silu_mul(x, limit=None):
    gate, up = x.chunk(2, dim=-1)
    return torch.sigmoid(gate) * gate * up
