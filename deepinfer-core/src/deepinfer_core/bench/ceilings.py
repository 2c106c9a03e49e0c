"""How fast a device moves bytes and multiplies, measured on it: the ceilings of every op.

Nothing is looked up. Bytes count where they are read and where they are written; products are of
random numbers, since zeros run faster on some hardware.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer_core.bench.machine import LARGE_BYTES
from deepinfer_core.bench.op_costs import FP8, OpCost
from deepinfer_core.host_machine import memory_info

LARGEST_SIDE = 8192
LONG_S = 0.005
"""A product that takes so long fills its device."""
REPEATS = 7


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What nothing on this device can beat."""

    bytes_per_s: float
    """Of a large copy, read and written bytes."""
    flop_per_s: dict[str, float]
    """Of a large product, by the dtype of its factors."""

    def memory_s(self, cost: OpCost) -> float:
        """Seconds that the bytes take at least."""
        return cost.num_bytes / self.bytes_per_s

    def product_s(self, cost: OpCost) -> float:
        """Seconds that the products take at least; in a dtype that was not measured, as in the
        fastest other one."""
        fastest = max(self.flop_per_s.values())
        return cost.flop / self.flop_per_s.get(cost.dtype, fastest)

    def floor_s(self, cost: OpCost) -> float:
        """Seconds that a call takes at least: both at once."""
        return max(self.memory_s(cost), self.product_s(cost))


def measure_ceilings(device: torch.device, dtypes: set[str]) -> Ceilings:
    """Copy and multiply on a device for a second or so. Blocks.

    Args:
        dtypes: of factors; `float8_e4m3fn` is left out where torch multiplies no such matrices.
    """
    with torch.inference_mode():
        speeds = {dtype: _product_speed(device, dtype) for dtype in sorted(dtypes)}
        flop_per_s = {dtype: speed for dtype, speed in speeds.items() if speed is not None}
        return Ceilings(copy_bandwidth(device), flop_per_s)


def copy_bandwidth(device: torch.device, num_bytes: int = LARGE_BYTES) -> float:
    """Bytes per second, read and written, of a copy between two buffers. Blocks."""
    if device.type == "cpu":
        num_bytes = min(num_bytes, memory_info()[0] // 8)
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_s(lambda: target.copy_(source), device)


def wait_for(device: torch.device) -> None:
    """Block until a device has done what was queued."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)  # SYNC: measuring, between steps


def median_s(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one run, the first one left out."""
    run()
    wait_for(device)
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        run()
        wait_for(device)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _product_speed(device: torch.device, dtype: str) -> float | None:
    """FLOP per second of square products, of the first size that takes long; None: it cannot."""
    side = 512
    while True:
        try:
            seconds = median_s(_product(device, dtype, side), device)
        except (RuntimeError, NotImplementedError):
            return None
        if seconds >= LONG_S or side == LARGEST_SIDE:
            return 2 * side**3 / seconds
        side *= 2


def _product(device: torch.device, dtype: str, side: int) -> Callable[[], Tensor]:
    x, weight = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in "xw")
    if dtype != FP8:
        return lambda: x @ weight.T
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(x, weight.T, one, one, out_dtype=torch.bfloat16)
