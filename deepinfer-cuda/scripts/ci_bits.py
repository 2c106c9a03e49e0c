"""Products of few rows give the same bits again and again, also while memory is busy with copies.

Their kernels stream weights through rings of barriers: a race shows in some bits of some runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from deepinfer_cuda.kernels.coded_gemm import coded
from deepinfer_cuda.kernels.dense import dense, gated
from deepinfer_cuda.kernels.experts import coded as coded_experts
from deepinfer_cuda.kernels.experts import experts
from torch import Tensor
from torch.nn.functional import silu

DEVICE = "cuda"
TIMES = 200
JUNK_BYTES = 64 << 20
SCHEME = "fp8_block128"
MAX_ERROR = 2e-2
"""Of a product in bfloat16, relative to its norm."""
DENSE_SHAPES = ((6144, 4096), (4096, 12288), (512, 768), (151936, 4096))
CODED_SHAPES = ((2112, 7168), (7168, 16384), (24576, 1536), (64, 512))
ROWS = (1, 5, 8)
HAS_E4M3 = (8, 9)
"""Compute capability from which Triton knows the type."""
EXPERTS, HIDDEN, FEATURES, TOP_K = 64, 4096, 1024, 8

Product = tuple[str, Callable[[], Tensor], Tensor]
"""Name, what to repeat, and what should come out."""


def repeat_products() -> dict[str, Any]:
    """Unequal runs, and how far the first run is from a product in float32."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    unequal, wrong, count = {}, {}, 0
    for name, product, wanted in products():
        count += 1
        if found := _count_unequal(product):
            unequal[name] = f"{found} of {TIMES}"
        error = ((product().float() - wanted).norm() / wanted.norm()).item()
        if not error < MAX_ERROR:
            wrong[name] = error
    return {
        "passed": not unequal and not wrong,
        "counts": {"products": count},
        "repeats": TIMES,
        "unequal": unequal,
        "wrong": wrong,
    }


def _count_unequal(product: Callable[[], Tensor]) -> int:
    first, side = product(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    junk = torch.empty(JUNK_BYTES, dtype=torch.uint8, device=DEVICE)
    other = torch.empty_like(junk)
    num_unequal = torch.zeros((), dtype=torch.int64, device=DEVICE)
    # Else copies go to memory that earlier work still reads.
    side.wait_stream(torch.cuda.current_stream())
    for turn in range(TIMES):
        if turn % 3 == 0:  # else alone
            with torch.cuda.stream(side):
                other.copy_(junk)
        num_unequal += (product() != first).any()
    torch.cuda.synchronize()
    return int(num_unequal)


def products() -> Iterator[Product]:
    for outputs, size in DENSE_SHAPES:
        weight = _normal(outputs, size) * size**-0.5
        for rows in ROWS:
            x = _normal(rows, size)
            wanted = x.float() @ weight.float().T
            yield f"dense {outputs}x{size} of {rows}", partial(dense, x, weight), wanted
    weight = _normal(2 * FEATURES, HIDDEN) * HIDDEN**-0.5
    x = _normal(8, HIDDEN)
    gate, up = (x.float() @ weight.float().T).chunk(2, dim=1)
    yield "gated", partial(gated, x, weight), silu(gate) * up
    if torch.cuda.get_device_capability() >= HAS_E4M3:
        yield from _coded_products()
        yield from _expert_products()


def _coded_products() -> Iterator[Product]:
    for outputs, size in CODED_SHAPES:
        codes, scales = _codes(outputs, size)
        for rows in ROWS:
            x = _normal(rows, size)
            wanted = x.float() @ _decode(codes, scales).T
            yield (
                f"coded {outputs}x{size} of {rows}",
                partial(coded, x, codes, scales, scheme=SCHEME),
                wanted,
            )


def _expert_products() -> Iterator[Product]:
    up, up_scales = _codes(EXPERTS, 2 * FEATURES, HIDDEN)
    down, down_scales = _codes(EXPERTS, HIDDEN, FEATURES)
    plain_up, plain_down = _decode(up, up_scales), _decode(down, down_scales)
    plain = plain_up.bfloat16(), plain_down.bfloat16()
    for rows in (1, 4, 16, 32):
        x = _normal(rows, HIDDEN)
        order = torch.rand(rows, EXPERTS, device=DEVICE).argsort(dim=1)
        ids = order[:, :TOP_K].to(torch.int32)
        weights = torch.rand(rows, TOP_K, device=DEVICE)
        wanted = torch.zeros(rows, HIDDEN, device=DEVICE)
        for row in range(rows):
            for place in range(TOP_K):
                expert = ids[row, place]
                gate, rest = (plain_up[expert] @ x[row].float()).chunk(2)
                wanted[row] += weights[row, place] * (plain_down[expert] @ (silu(gate) * rest))
        matrices = (up, up_scales, down, down_scales)
        product = partial(coded_experts, x, ids, weights, *matrices, scheme=SCHEME)
        yield f"coded experts of {rows}", product, wanted
        yield f"experts of {rows}", partial(experts, x, ids, weights, *plain), wanted


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def _codes(*shape: int) -> tuple[Tensor, Tensor]:
    """Codes whose products have variance one, and scales of blocks of 128 by 128."""
    codes = (_normal(*shape) * 32).to(torch.float8_e4m3fn)
    blocks = (*shape[:-2], -(-shape[-2] // 128), shape[-1] // 128)
    scales = (torch.rand(*blocks, device=DEVICE) + 0.5) / 32 * shape[-1] ** -0.5
    return codes, scales


def _decode(codes: Tensor, scales: Tensor) -> Tensor:
    whole = scales.repeat_interleave(128, -2).repeat_interleave(128, -1)
    return codes.float() * whole[..., : codes.shape[-2], :]
