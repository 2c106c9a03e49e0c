"""Tiles of each expert's tokens, laid out on the device: the host knows how many at most.

A slot is a pair of a token and one of its experts, `token * top_k + k`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer_cuda.heuristics_moe import max_tiles
from deepinfer_cuda.kernels.overlap import let_next_start, overlap, wait_for_inputs

CHUNK = 2048
"""Slots that a program looks at at a time."""
ALIGNED = 4
"""Integers of 16 bytes."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Up to `bound` tiles of slots, each of one expert; how many there are, the device knows."""

    bound: int
    count: Tensor
    """int32, the first number."""
    experts: Tensor
    """[bound] int32."""
    slots: Tensor
    """[bound * rows] int32; where a tile has fewer, the number of all slots."""


@triton.jit
def _local_experts(ids_ptr, map_ptr, slots, num_slots, HAS_MAP: tl.constexpr):
    """-1 where the expert is not here, or there is no such slot."""
    mask = slots < num_slots
    experts = tl.load(ids_ptr + slots, mask=mask, other=-1)
    if HAS_MAP:
        experts = tl.load(map_ptr + experts, mask=mask, other=-1)
    return experts


@triton.jit(do_not_specialize=["num_slots"])
def lay_out_kernel(
    ids_ptr,
    map_ptr,
    count_ptr,
    experts_ptr,
    slots_ptr,
    num_slots,
    HAS_MAP: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program has an expert: it counts everybody's slots, and writes its own in order."""
    wait_for_inputs(OVERLAP)
    let_next_start(OVERLAP)
    expert = tl.program_id(0)
    experts = tl.arange(0, EXPERTS)
    counts = tl.zeros([EXPERTS], tl.int32)
    for first in range(0, num_slots, CHUNK):
        slots = first + tl.arange(0, CHUNK)
        local = _local_experts(ids_ptr, map_ptr, slots, num_slots, HAS_MAP)
        counts += tl.histogram(tl.maximum(local, 0), EXPERTS, mask=local >= 0)
    tiles = (counts + ROWS - 1) // ROWS
    first_tile = tl.sum(tl.where(experts < expert, tiles, 0), axis=0)
    num_own = tl.sum(tl.where(experts == expert, counts, 0), axis=0)
    num_tiles = tl.cdiv(num_own, ROWS)
    if expert == 0:
        tl.store(count_ptr, tl.sum(tiles, axis=0))
    own_ptr = slots_ptr + first_tile * ROWS
    done = 0
    if num_own > 0:
        for first in range(0, num_slots, CHUNK):
            slots = first + tl.arange(0, CHUNK)
            local = _local_experts(ids_ptr, map_ptr, slots, num_slots, HAS_MAP)
            is_own = (local == expert).to(tl.int32)
            place = done + tl.cumsum(is_own, axis=0) - is_own
            tl.store(own_ptr + place, slots, mask=is_own != 0)
            done += tl.sum(is_own, axis=0)
    rest = num_own + tl.arange(0, ROWS)
    tl.store(own_ptr + rest, tl.zeros_like(rest) + num_slots, mask=rest < num_tiles * ROWS)
    for tile in range(num_tiles):
        tl.store(experts_ptr + first_tile + tile, expert)


def lay_out(ids: Tensor, expert_map: Tensor | None, num_experts: int, rows: int) -> Tiles:
    """Tiles of at most `rows` slots each, by expert, in the order of slots within one."""
    bound = max_tiles(ids.numel(), num_experts, rows)
    # All of them aligned, whatever the bound: Triton compiles anew for others.
    memory = torch.empty(ALIGNED + bound * (1 + rows), dtype=torch.int32, device=ids.device)
    count, slots, experts = memory.split((ALIGNED, bound * rows, bound))
    lay_out_kernel[(num_experts,)](
        ids,
        ids if expert_map is None else expert_map,
        count,
        experts,
        slots,
        ids.numel(),
        HAS_MAP=expert_map is not None,
        EXPERTS=triton.next_power_of_2(num_experts),
        ROWS=rows,
        CHUNK=CHUNK,
        **overlap(ids.device),
    )
    return Tiles(bound, count, experts, slots)
