"""The KV pool as a tensor: its size, and each layer's view of it.

Bytes per page come from `kv.layout`; who owns which page is `kv.manager`'s business.
"""

from __future__ import annotations

import logging
import math

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.config import CacheConfig
from deepinfer_core.errors import ConfigError, OutOfDeviceMemoryError
from deepinfer_core.kv.layout import KVLayout
from deepinfer_core.kv.tables import max_tokens_held
from deepinfer_core.runtime.batch import LayerCache

logger = logging.getLogger(__name__)

MIN_BLOCKS = 2
"""The null block and one to write to."""
MAX_SLOTS = 2**31
"""`slot_mapping` is int32."""
STEP_MARGIN = 1.25
"""Of what steps were measured to take: for recorded steps, and for gaps between allocations."""


def choose_num_blocks(
    layout: KVLayout, cache: CacheConfig, free_bytes: int, step_bytes: int | None = None
) -> int:
    """Blocks for the pool: as configured, or as many as the fraction of free memory holds.

    Args:
        free_bytes: memory that is free once the weights are in place.
        step_bytes: what the largest step takes of it, as measured; None: nobody measured.

    Raises:
        ConfigError: more blocks are configured than slots can be numbered.
        OutOfDeviceMemoryError: not even `MIN_BLOCKS` pages fit.
    """
    most = MAX_SLOTS // max(group.block_size for group in layout.groups)
    num_blocks = cache.num_blocks
    if num_blocks is None:
        budget_bytes = int(free_bytes * cache.memory_fraction)
        arithmetic = f"{free_bytes:,} bytes free x {cache.memory_fraction:g}"
        if step_bytes is not None:
            kept_bytes = int(step_bytes * STEP_MARGIN)
            budget_bytes = min(budget_bytes, free_bytes - kept_bytes)
            arithmetic += f", at most what {kept_bytes:,} for steps leave, as measured"
        num_blocks = min(max(0, budget_bytes) // layout.page_bytes, most)
        arithmetic += f", / {layout.page_bytes:,}"
    elif num_blocks > most:
        raise ConfigError(
            "more slots than fit 32 bits",
            field="cache.num_blocks",
            value=num_blocks,
            allowed=f"at most {most} with blocks of this size",
        )
    else:
        arithmetic = "as configured"
    wanted_bytes = max(num_blocks, MIN_BLOCKS) * layout.page_bytes
    if num_blocks < MIN_BLOCKS or wanted_bytes > free_bytes:
        raise OutOfDeviceMemoryError(
            wanted_bytes=wanted_bytes,
            free_bytes=free_bytes,
            hint="raise cache.memory_fraction, lower cache.num_blocks, cache.block_size or, as "
            "steps need memory too, scheduler.max_num_batched_tokens",
        )
    tokens = max_tokens_held(layout.groups, num_blocks - 1)
    logger.info(
        "KV pool: %d blocks of %d bytes (%s) = %.2f GiB, room for one request of %d tokens",
        num_blocks, layout.page_bytes, arithmetic, wanted_bytes / 2**30, tokens,
    )  # fmt: skip
    return num_blocks


def allocate_pool(layout: KVLayout, num_blocks: int, device: torch.device) -> Tensor:
    """[num_blocks, page_bytes] uint8, zero-filled: kernels may read slots nobody wrote."""
    shape = (num_blocks, layout.page_bytes)
    if device.type == "cpu":
        # Pages that the system zeroes when they are first written cost nothing until then.
        return torch.from_numpy(np.zeros(shape, dtype=np.uint8))
    return torch.zeros(shape, dtype=torch.uint8, device=device)


def layer_caches(pool: Tensor, layout: KVLayout, dtype: torch.dtype) -> list[LayerCache]:
    """Each cache's key and value views over the pool, in the model's order.

    Views are contiguous inside a block and strided by `page_bytes` from block to block, see
    `LayoutGroup.plane_offsets`. A cache of one plane has it as both views.
    """
    num_blocks = pool.shape[0]
    caches: dict[int, LayerCache] = {}
    for group in layout.groups:
        for cache, kv, offset_bytes in zip(
            group.caches, group.layer_kvs, group.plane_offsets, strict=True
        ):
            typed = pool.view(dtype if kv.dtype is None else getattr(torch, kv.dtype))
            num_rows = group.block_size // kv.tokens_per_row
            shape = (num_blocks, num_rows, kv.num_kv_heads, kv.head_dim)
            size, first = math.prod(shape[1:]), offset_bytes // kv.dtype_bytes
            planes = [
                typed[:, start : start + size].view(shape)
                for start in range(first, first + kv.num_planes * size, size)
            ]
            caches[cache] = LayerCache(k_cache=planes[0], v_cache=planes[-1])
    return [caches[cache] for cache in range(len(caches))]
