"""What launches depend on besides shapes."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from deepinfer_cuda.heuristics import LARGE_SHARED_BYTES


@cache
def shared_bytes(device: torch.device) -> int:
    """Of shared memory that a device has for one program."""
    if device.type == "cpu":  # Triton's interpreter
        return LARGE_SHARED_BYTES
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


@cache
def major(device: torch.device) -> int:
    """Of the compute capability."""
    if device.type == "cpu":  # Triton's interpreter
        return 9
    return torch.cuda.get_device_capability(device)[0]


def dtype_name(dtype: torch.dtype) -> str:
    """As the contract writes it."""
    return str(dtype).removeprefix("torch.")
