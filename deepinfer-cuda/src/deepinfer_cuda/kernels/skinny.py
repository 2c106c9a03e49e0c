"""Products of few rows in CUDA C++: see `sources/skinny.cu`, which needs compute capability 9.0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda.compiled import CompiledKernel
from deepinfer_cuda.heuristics_skinny import (
    NUM_WARPS,
    OUTPUTS,
    SkinnyLaunch,
    skinny_launch,
)
from deepinfer_cuda.kernels.expert_tiles import Tiles

DTYPES = (torch.bfloat16, torch.float16)
SCHEME = "fp8_block128"


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix [N, K], or [E, N, K] of experts; codes have scales for blocks of 128 by 128."""

    matrix: Tensor
    scales: Tensor | None = None
    bias: Tensor | None = None


def launch_for(x: Tensor, weights: Weights, num_rows: int) -> SkinnyLaunch | None:
    """How the kernel multiplies these, `num_rows` at a time; None: it cannot, or others should."""
    matrix, is_coded = weights.matrix, weights.scales is not None
    if x.device.type != "cuda" or x.dtype not in DTYPES:
        return None
    if matrix.dtype != (torch.float8_e4m3fn if is_coded else x.dtype):
        return None
    if not is_aligned(x) or not is_aligned(matrix):
        return None
    major, num_blocks, shared_bytes = _device_facts(x.device)
    if major < 9:
        return None
    return skinny_launch(num_rows, x.shape[1], num_blocks, shared_bytes, is_coded=is_coded)


def is_aligned(matrix: Tensor) -> bool:
    """Whether rows can be copied 16 bytes at a time."""
    row_bytes = matrix.stride(-2) * matrix.element_size()
    return matrix.stride(-1) == 1 and row_bytes % 16 == 0 and matrix.data_ptr() % 16 == 0


def multiply(
    x: Tensor,
    weights: Weights,
    launch: SkinnyLaunch,
    *,
    is_gated: bool = False,
    limit: float | None = None,
) -> Tensor:
    """x @ matrix^T + bias; gated, silu of the first half of that times the other half."""
    num_rows = len(x)
    num_outputs = len(weights.matrix) // 2 if is_gated else len(weights.matrix)
    y = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    kernel = _compile(launch, is_gated, weights.scales is not None, 0, x.dtype, x.device)
    num_tiles = -(-num_outputs // (OUTPUTS // 2 if is_gated else OUTPUTS))
    num_blocks = min(launch.num_blocks, num_tiles)
    _launch(kernel, num_blocks, x, weights, y, None, 1, limit)
    return y


def multiply_slots(
    x: Tensor,
    weights: Weights,
    tiles: Tiles,
    y: Tensor,
    launch: SkinnyLaunch,
    *,
    top_k: int | None = None,
    limit: float | None = None,
) -> None:
    """Every slot with its expert's matrix.

    Args:
        x: [number of slots / top_k, K].
        y: [number of slots, N], where it goes; rows of experts that are not here stay as they are.
        tiles: of up to eight slots.
        top_k: of the first product, whose matrices are gates and ups; None: of the second.
    """
    is_first = top_k is not None
    is_coded = weights.scales is not None
    kernel = _compile(launch, is_first, is_coded, 1 if is_first else 2, x.dtype, x.device)
    _launch(kernel, launch.num_blocks, x, weights, y, tiles, top_k or 1, limit)


def _launch(
    kernel: CompiledKernel,
    num_blocks: int,
    x: Tensor,
    weights: Weights,
    y: Tensor,
    tiles: Tiles | None,
    top_k: int,
    limit: float | None,
) -> None:
    matrix, scales = weights.matrix, weights.scales
    lists = (None, None, None) if tiles is None else (tiles.count, tiles.experts, tiles.slots)
    width = matrix.element_size()
    kernel.launch(
        num_blocks,
        (x, matrix, weights.bias, y, scales, *lists),
        (*y.shape, x.shape[1], top_k),
        (
            x.stride(0),
            matrix.stride(-2) * width,
            y.stride(0),
            0 if scales is None else scales.stride(-2),
            matrix.stride(0) * width,
            0 if scales is None else scales.stride(0),
        ),
        (math.inf if limit is None else limit,),
    )


@cache
def _device_facts(device: torch.device) -> tuple[int, int, int]:
    """Major compute capability, number of processors, bytes of shared memory for a block."""
    facts: Any = torch.cuda.get_device_properties(device)
    return facts.major, facts.multi_processor_count, facts.shared_memory_per_block_optin


@cache
def _compile(
    launch: SkinnyLaunch,
    is_gated: bool,
    is_coded: bool,
    experts: int,
    dtype: torch.dtype,
    device: torch.device,
) -> CompiledKernel:
    constants = {
        "PIECE": launch.piece,
        "STAGES": launch.num_stages,
        "FILLERS": launch.num_fillers,
        "HELD": launch.pieces_held,
        "GATED": int(is_gated),
        "CODED": int(is_coded),
        "EXPERTS": experts,
        "IS_HALF": int(dtype == torch.float16),
    }
    return CompiledKernel(
        "skinny",
        constants,
        num_threads=32 * (NUM_WARPS + launch.num_fillers),
        shared_bytes=launch.shared_bytes,
        device=device,
    )
