"""Specs of the ops that write the KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor


@op("kv.store", major=1, tier=0, features={"strided_cache", "latent"})
def store(
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    slot_mapping: Tensor,
    plan: object | None = None,
) -> None:
    """Write keys and values of this step's tokens into their slots.

    Args:
        k, v: [T, Hk, D]; tokens may be strided.
        k_cache, v_cache: [P, s, Hk, D] in the dtype of k, modified in place. Contiguous but for
            the block axis, whose stride may be larger (feature `strided_cache`). v and v_cache are
            None where one row serves as key and value (feature `latent`).
        slot_mapping: [T] int32; slot i is place i % s of block i // s; -1 = do not write. No
            slot occurs twice.
        plan: what the kernel's `plan` made of the meta in this step, or None.

    Nothing but the named slots changes.
    """


@op("kv.copy_blocks", major=1, tier=0, hot=False)
def copy_blocks(pool: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copy whole pages, for copy-on-write.

    Args:
        pool: [P, page_bytes] uint8, modified in place.
        src, dst: [n] int64 pages; no page occurs twice in dst or in both.
    """
