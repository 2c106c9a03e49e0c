"""Specs of the ops that write the KV cache."""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

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


@op("kv.compress", major=1, tier=2, features={"strided_cache"})
def compress(cache: Tensor, rows: Tensor, position_bias: Tensor, overlaps: bool) -> Tensor:
    """Pool the raw rows of groups of m tokens into one row each, by a softmax per channel.

    A raw row holds values and gates of W channels each; the weight of a token in a channel is
    the softmax, over the tokens of its group, of its gate plus the bias of its place. With
    overlap the first half of the channels belongs to the group that follows: a row pools the
    first halves of the m tokens before its group and the second halves of its own (DeepSeek-V4,
    sections 2.3.1 and 2.3.2).

    Args:
        cache: [P, s, 2 * W] float32: values, then gates. Contiguous but for the block axis, whose
            stride may be larger (feature `strided_cache`).
        rows: [E, m] int32 slots of each group's tokens, with overlap [E, 2 * m], those of the
            group before first; -1 = no such token.
        position_bias: [m, W] float32.
        overlaps: whether groups overlap.

    Returns:
        [E, W] float32, with overlap [E, W / 2]. Groups without any token give anything finite.
    """


@op("kv.copy_blocks", major=1, tier=0, runs_in="few_steps")
def copy_blocks(pool: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copy whole pages, for copy-on-write.

    Args:
        pool: [P, page_bytes] uint8, modified in place.
        src, dst: [n] int64 pages; no page occurs twice in dst or in both.
    """
