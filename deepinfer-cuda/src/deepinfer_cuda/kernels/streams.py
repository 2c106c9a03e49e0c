"""Hyper-connections: coefficients of residual streams, and sums of streams that they weight.

A projection of all streams of a token is shared out, in pieces of one length whatever the batch;
its parts are added in one order, so that a token's bits are its own.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 2048
"""Numbers of a token that a program multiplies; part of what the bits are."""
ROWS, BLOCK = 16, 64
"""Tokens of a tile, and numbers that are multiplied at a time."""
DIMS = 512
"""Of a stream that a program weights."""


@triton.jit
def _project_kernel(
    streams_ptr,
    fn_ptr,
    parts_ptr,
    num_tokens,
    num_pieces,
    SIZE: tl.constexpr,
    COUNT: tl.constexpr,
    COUNTS: tl.constexpr,
    ROWS: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A piece of the product with each row of `fn`, and behind them the sum of squares."""
    tokens = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    piece = tl.program_id(1)
    counts = tl.arange(0, COUNTS)
    is_token, is_count = tokens < num_tokens, counts < COUNT
    products = tl.zeros([ROWS, COUNTS], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    for start in range(0, PIECE, BLOCK):
        columns = piece * PIECE + start + tl.arange(0, BLOCK)
        is_column = columns < SIZE
        x = tl.load(
            streams_ptr + tokens[:, None] * SIZE + columns[None, :],
            mask=is_token[:, None] & is_column[None, :],
            other=0.0,
        ).to(tl.float32)
        fn = tl.load(
            fn_ptr + counts[:, None] * SIZE + columns[None, :],
            mask=is_count[:, None] & is_column[None, :],
            other=0.0,
        )
        products = tl.dot(x, tl.trans(fn), products, input_precision="ieee")
        squares += tl.sum(x * x, 1)
    parts = parts_ptr + (tokens * num_pieces + piece) * (COUNT + 1)
    tl.store(parts[:, None] + counts[None, :], products, mask=is_token[:, None] & is_count[None, :])
    tl.store(parts + COUNT, squares, mask=is_token)


@triton.jit
def _total(parts_ptr, columns, mask, num_pieces, COUNT: tl.constexpr):
    """Sums over the pieces of a token, in order."""
    total = tl.zeros_like(columns).to(tl.float32)
    for piece in range(num_pieces):
        total += tl.load(parts_ptr + piece * (COUNT + 1) + columns, mask=mask, other=0.0)
    return total


@triton.jit
def _coefficients_kernel(
    parts_ptr,
    base_ptr,
    scale_ptr,
    weights_ptr,
    post_ptr,
    mix_ptr,
    num_pieces,
    norm_eps,
    eps,
    num_iters,
    SIZE: tl.constexpr,
    COUNT: tl.constexpr,
    N: tl.constexpr,
    NS: tl.constexpr,
    IS_HEAD: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    parts = parts_ptr + token * num_pieces * (COUNT + 1)
    streams = tl.arange(0, NS)
    is_stream = streams < N
    squares = _total(parts, streams * 0 + COUNT, streams >= 0, num_pieces, COUNT)
    inverse = tl.rsqrt(tl.max(squares, 0) / SIZE + norm_eps)
    z = _total(parts, streams, is_stream, num_pieces, COUNT) * inverse
    base = tl.load(base_ptr + streams, mask=is_stream, other=0.0)
    weights = 1.0 / (1.0 + tl.exp(-(z * tl.load(scale_ptr) + base))) + eps
    tl.store(weights_ptr + token * N + streams, weights, mask=is_stream)
    if not IS_HEAD:
        z = _total(parts, N + streams, is_stream, num_pieces, COUNT) * inverse
        base = tl.load(base_ptr + N + streams, mask=is_stream, other=0.0)
        post = 2.0 / (1.0 + tl.exp(-(z * tl.load(scale_ptr + 1) + base)))
        tl.store(post_ptr + token * N + streams, post, mask=is_stream)
        places = streams[:, None] * N + streams[None, :]
        is_place = is_stream[:, None] & is_stream[None, :]
        z = _total(parts, 2 * N + places, is_place, num_pieces, COUNT) * inverse
        base = tl.load(base_ptr + 2 * N + places, mask=is_place, other=0.0)
        raw = tl.where(is_place, z * tl.load(scale_ptr + 2) + base, float("-inf"))
        peak = tl.max(raw, 1)
        exps = tl.exp(raw - tl.where(is_stream, peak, 0.0)[:, None])
        total = tl.where(is_stream, tl.sum(exps, 1), 1.0)
        mix = tl.where(is_place, exps / total[:, None] + eps, 0.0)
        mix = mix / (tl.sum(mix, 0) + eps)[None, :]
        for _ in range(num_iters - 1):
            mix = mix / (tl.sum(mix, 1) + eps)[:, None]
            mix = mix / (tl.sum(mix, 0) + eps)[None, :]
        tl.store(mix_ptr + token * N * N + places, mix, mask=is_place)


@triton.jit
def _collapse_kernel(
    streams_ptr,
    weights_ptr,
    out_ptr,
    SIZE: tl.constexpr,
    N: tl.constexpr,
    DIMS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    is_dim = dims < SIZE
    total = tl.zeros([DIMS], tl.float32)
    for stream in tl.static_range(N):
        x = tl.load(streams_ptr + (token * N + stream) * SIZE + dims, mask=is_dim, other=0.0)
        total += tl.load(weights_ptr + token * N + stream) * x.to(tl.float32)
    tl.store(out_ptr + token * SIZE + dims, total.to(out_ptr.dtype.element_ty), mask=is_dim)


@triton.jit
def _post_kernel(
    y_ptr,
    streams_ptr,
    post_ptr,
    mix_ptr,
    out_ptr,
    y_stride,
    SIZE: tl.constexpr,
    N: tl.constexpr,
    DIMS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    is_dim = dims < SIZE
    y = tl.load(y_ptr + token * y_stride + dims, mask=is_dim, other=0.0).to(tl.float32)
    for stream in tl.static_range(N):
        total = y * tl.load(post_ptr + token * N + stream)
        for other in tl.static_range(N):
            x = tl.load(streams_ptr + (token * N + other) * SIZE + dims, mask=is_dim, other=0.0)
            total += tl.load(mix_ptr + (token * N + other) * N + stream) * x.to(tl.float32)
        place = out_ptr + (token * N + stream) * SIZE + dims
        tl.store(place, total.to(out_ptr.dtype.element_ty), mask=is_dim)


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
    streams = streams.contiguous()
    coefficients = _coefficients(streams, fn, base, scale, norm_eps, eps, num_iters)
    weights, post_weights, mix = coefficients
    if previous is None:
        return collapse(streams, weights), post_weights, mix
    return collapse(streams, previous), post_weights, mix, weights


def post(y: Tensor, streams: Tensor, post: Tensor, mix: Tensor) -> Tensor:
    """See `deepinfer_core.ops.specs.hc.post`."""
    y = y if y.stride(1) == 1 else y.contiguous()
    streams, post, mix = streams.contiguous(), post.contiguous(), mix.contiguous()
    num_tokens, num_streams, size = streams.shape
    out = torch.empty_like(streams)
    if num_tokens:
        _post_kernel[(num_tokens, triton.cdiv(size, DIMS))](
            y,
            streams,
            post,
            mix,
            out,
            y.stride(0),
            SIZE=size,
            N=num_streams,
            DIMS=DIMS,
            num_warps=2,
        )
    return out


def head(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm_eps: float, eps: float
) -> Tensor:
    """See `deepinfer_core.ops.specs.hc.head`."""
    streams = streams.contiguous()
    weights, _, _ = _coefficients(streams, fn, base, scale, norm_eps, eps, None)
    return collapse(streams, weights)


def collapse(streams: Tensor, weights: Tensor) -> Tensor:
    """See `deepinfer_core.ops.specs.hc.collapse`."""
    streams, weights = streams.contiguous(), weights.contiguous()
    num_tokens, num_streams, size = streams.shape
    out = torch.empty((num_tokens, size), dtype=streams.dtype, device=streams.device)
    if num_tokens:
        _collapse_kernel[(num_tokens, triton.cdiv(size, DIMS))](
            streams, weights, out, SIZE=size, N=num_streams, DIMS=DIMS, num_warps=2
        )
    return out


def _coefficients(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm_eps: float,
    eps: float,
    num_iters: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """weights, post [T, n] and mix [T, n, n]; without a number of rounds only the first."""
    num_tokens, num_streams, size = streams.shape
    width, count, pieces = num_streams * size, len(fn), triton.cdiv(num_streams * size, PIECE)
    options: dict[str, Any] = {"dtype": torch.float32, "device": streams.device}
    weights = torch.empty((num_tokens, num_streams), **options)
    post_weights, mix = torch.empty_like(weights), torch.empty((0,), **options)
    if num_iters is not None:
        mix = torch.empty((num_tokens, num_streams, num_streams), **options)
    if not num_tokens:
        return weights, post_weights, mix
    parts = torch.empty((num_tokens, pieces, count + 1), **options)
    _project_kernel[(triton.cdiv(num_tokens, ROWS), pieces)](
        streams,
        fn.contiguous(),
        parts,
        num_tokens,
        pieces,
        SIZE=width,
        COUNT=count,
        COUNTS=max(16, triton.next_power_of_2(count)),
        ROWS=ROWS,
        PIECE=PIECE,
        BLOCK=BLOCK,
        num_warps=4,
    )
    _coefficients_kernel[(num_tokens,)](
        parts,
        base,
        scale,
        weights,
        post_weights,
        mix,
        pieces,
        norm_eps,
        eps,
        num_iters or 0,
        SIZE=width,
        COUNT=count,
        N=num_streams,
        NS=triton.next_power_of_2(num_streams),
        IS_HEAD=num_iters is None,
        num_warps=1,
    )
    return weights, post_weights, mix
