"""Products of few rows in CUDA C++: see `sources/skinny.cu`, which needs compute capability 9.0."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda.compiled import CompiledKernel
from deepinfer_cuda.heuristics_skinny import SkinnyLaunch, skinny_launch

OUTPUTS = 16
"""Rows of the weight in a tile."""
DTYPES = (torch.bfloat16, torch.float16)


def launch_for(x: Tensor, weight: Tensor) -> SkinnyLaunch | None:
    """How the kernel multiplies these; None: it cannot, or others are quicker."""
    if x.device.type != "cuda" or x.dtype not in DTYPES:
        return None
    if not is_aligned(x) or not is_aligned(weight):
        return None
    major, num_blocks, shared_bytes = _device_facts(x.device)
    num_rows, size = x.shape
    return skinny_launch(num_rows, size, num_blocks, shared_bytes) if major >= 9 else None


def is_aligned(matrix: Tensor) -> bool:
    """Whether rows can be copied 16 bytes at a time."""
    return matrix.stride(1) == 1 and matrix.stride(0) % 8 == 0 and matrix.data_ptr() % 16 == 0


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, launch: SkinnyLaunch, *, is_gated: bool
) -> Tensor:
    """x @ weight^T + bias; gated, silu of the first half of that times the other half."""
    num_rows, size = x.shape
    num_outputs = weight.shape[0] // 2 if is_gated else weight.shape[0]
    y = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    kernel = _compile(launch, is_gated, x.dtype == torch.float16, x.device)
    num_tiles = -(-num_outputs // (OUTPUTS // 2 if is_gated else OUTPUTS))
    kernel.launch(
        min(launch.num_blocks, num_tiles),
        (x, weight, bias, y),
        (num_rows, num_outputs, size),
        (x.stride(0), weight.stride(0), y.stride(0)),
    )
    return y


@cache
def _device_facts(device: torch.device) -> tuple[int, int, int]:
    """Major compute capability, number of processors, bytes of shared memory for a block."""
    facts: Any = torch.cuda.get_device_properties(device)
    return facts.major, facts.multi_processor_count, facts.shared_memory_per_block_optin


@cache
def _compile(
    launch: SkinnyLaunch, is_gated: bool, is_half: bool, device: torch.device
) -> CompiledKernel:
    constants = {
        "PIECE": launch.piece,
        "STAGES": launch.num_stages,
        "FILLERS": launch.num_fillers,
        "GROUPS": launch.row_groups,
        "HELD": launch.pieces_held,
        "GATED": int(is_gated),
        "IS_HALF": int(is_half),
    }
    return CompiledKernel(
        "skinny",
        constants,
        num_threads=32 * (8 + launch.num_fillers),
        shared_bytes=launch.shared_bytes,
        device=device,
    )
