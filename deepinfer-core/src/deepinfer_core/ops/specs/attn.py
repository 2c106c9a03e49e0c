"""Specs of the attention ops."""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.ops.records import Record


@op(
    "attn.paged",
    major=1,
    tier=0,
    features={"varlen", "window", "sinks", "softcap", "lse_out", "strided_cache"},
)
def paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    plan: object | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend causally from this step's queries to the paged KV cache.

    The query at position p of a request sees positions j <= p, with a window those with
    p - window < j. Its score is s = scale * q.k, with a softcap c then c * tanh(s / c).

    Args:
        q: [T, H, D], tokens of request b at rows cu_seqlens_q[b] to cu_seqlens_q[b + 1] and at
            positions seq_lens[b] - query_lens[b] and on. Tokens may be strided.
        k_cache, v_cache: [P, s, Hk, D] in the dtype of q, H a multiple of Hk; query head h uses
            kv head h // (H / Hk). This step's tokens are stored already. Contiguous but for the
            block axis, whose stride may be larger (feature `strided_cache`).
        meta: the batch. Query lengths above one need the feature `varlen`.
        scale: factor of the scores.
        window: visible positions including the query's own; None = all (feature `window`).
        sinks: [H], one more score per head that takes weight but has no value (`sinks`).
        softcap: bound of the scores' magnitude (`softcap`).
        plan: what the kernel's `plan` made of the meta in this step, or None.
        return_lse: also return the normaliser (`lse_out`).

    Returns:
        o [T, H, D] in the dtype of q; with `return_lse` also lse [T, H] float32, the log of the
        sum of exponentials of all scores, the sink included.

    Caches are never written. Slots at or past seq_lens and block 0 hold finite garbage, blocks
    outside every block table may hold NaN; neither changes the result. Never waits for the
    device.
    """


@op("attn.mla", major=1, tier=1, features={"varlen", "lse_out", "strided_cache"})
def mla(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: object | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend causally to latents, which serve all heads as keys and as values.

    Multi-head latent attention with its projections absorbed (DeepSeek-AI 2024, arXiv:2405.04434,
    section 2.1): the score is s = scale * (q_latent.c + q_rope.r), the value is c.

    Args:
        q_latent: [T, H, R], queries in the space of the latents; tokens as in `attn.paged`.
        q_rope: [T, H, Dr], rotated.
        cache: [P, s, R + Dr] in the dtype of q: the latent c, then the rotated key r that all
            heads share. Contiguous but for the block axis, as in `attn.paged`.
        meta: the batch. Query lengths above one need the feature `varlen`.
        scale: factor of the scores.
        plan: what the kernel's `plan` made of the meta in this step, or None.
        return_lse: also return the normaliser (`lse_out`).

    Returns:
        o [T, H, R] in the dtype of q, possibly strided; with `return_lse` also lse [T, H] float32.

    What `attn.paged` says of caches and waiting holds here.
    """


@op(
    "attn.mla_prefill",
    major=1,
    tier=1,
    features={"varlen", "lse_out", "strided_cache"},
    runs_in="chunks",
)
def mla_prefill(
    q: Tensor,
    cache: Tensor,
    weight: Tensor,
    meta: AttentionMeta,
    scale: float,
    plan: object | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend causally to latents, from which each head's keys and values are expanded.

    What `attn.mla` computes between its projections and with them (DeepSeek-AI 2024,
    arXiv:2405.04434, section 2.1): the key is k = [W_K c; r], the value v = W_V c, the score
    s = scale * q.k. A pair of a query and a key costs Dn + Dr + Dv products per head instead of
    2 R + Dr, for R (Dn + Dv) more per key: less work for long chunks. How much is expanded at a
    time is the kernel's to choose; it needs no memory for all keys of all heads.

    Args:
        q: [T, H, Dn + Dr], the part that the latents meet, then the rotated one; tokens as in
            `attn.paged`.
        cache: [P, s, R + Dr] in the dtype of q, as in `attn.mla`.
        weight: [H, Dn + Dv, R] in the dtype of q: the rows of W_K, then those of W_V.
        meta: the batch. Query lengths above one need the feature `varlen`.
        scale: factor of the scores.
        plan: what the kernel's `plan` made of the meta in this step, or None.
        return_lse: also return the normaliser (`lse_out`).

    Returns:
        o [T, H, Dv] in the dtype of q, possibly strided; with `return_lse` also lse [T, H] float32.

    Keys and values may be rounded to the dtype of q. What `attn.paged` says of caches and waiting
    holds here.
    """


@op("attn.sparse_mla", major=1, tier=1, features={"sinks", "lse_out", "strided_cache", "records"})
def sparse_mla(
    q: Tensor,
    cache: Tensor,
    rows: Tensor,
    scale: float,
    value_dim: int,
    sinks: Tensor | None = None,
    extra_cache: Tensor | None = None,
    extra_rows: Tensor | None = None,
    return_lse: bool = False,
    record: Record | None = None,
    extra_record: Record | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend to chosen rows of one or two caches, which serve all heads as keys and as values.

    Args:
        q: [T, H, D].
        cache: [P, s, D] in the dtype of q, the value in the first dims. Contiguous but for the
            block axis, whose stride may be larger (feature `strided_cache`).
        rows: [T, n] int32 slots of that cache; -1 = none. A row may occur in both lists, and
            counts twice.
        scale: factor of the scores.
        value_dim: how many dims of a row are its value.
        sinks: [H], one more score per head that takes weight but has no value (feature `sinks`).
        extra_cache, extra_rows: a second cache and its rows, or None.
        return_lse: also return the normaliser (`lse_out`).
        record, extra_record: what the rows of each cache are, if not plain: then the cache is
            [P, s, record.num_bytes] uint8 (feature `records`; the scheme is the format, or both
            formats joined by a plus where they differ).

    Returns:
        o [T, H, value_dim] in the dtype of q; with `return_lse` also lse [T, H] float32. A query
        without rows gets zeros and, without a sink, -inf.

    Slots that no row names may hold NaN. Never waits for the device.
    """


@op("attn.qkv", major=1, tier=0, features={"qk_norm", "interleaved", "strided_cache"})
def qkv(
    qkv: Tensor,
    num_q_heads: int,
    positions: Tensor,
    cos_sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 0.0,
    layout: str = "half",
) -> Tensor:
    """From projected heads to queries and the cache: `norm.rms`, `rope.apply`, `kv.store` in one.

    Layers use it where a kernel is quicker than those three one after another.

    Args:
        qkv: [T, H + 2 * Hk, D], heads of queries, keys and values.
        num_q_heads: H.
        positions, cos_sin, layout: as of `rope.apply`; values do not rotate.
        k_cache, v_cache, slot_mapping: as of `kv.store`.
        q_weight, k_weight: [D] in the dtype of qkv, norms of each query and each key head before
            they rotate (feature `qk_norm`), or both None.
        eps: of the norms.

    Returns:
        [T, H, D]: the queries, rounded after the norm, its weight and the rotation, as the three
        ops round.
    """


@op("attn.latents", major=1, tier=1, features={"interleaved", "strided_cache"})
def latents(
    row: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    weight: Tensor,
    eps: float,
    layout: str = "half",
    q: Tensor | None = None,
    q_weight: Tensor | None = None,
) -> Tensor | None:
    """From projected latents to the cache: `norm.rms`, `rope.apply` and `kv.store` in one.

    Layers use it where a kernel is quicker than those three one after another.

    Args:
        row: [T, R + Dr], a latent, then the key that rotates; rows may be strided.
        positions, cos_sin, layout: as of `rope.apply`.
        cache: [P, s, R + Dr] in the dtype of the row, modified in place; contiguous but for the
            block axis, whose stride may be larger (feature `strided_cache`).
        slot_mapping: as of `kv.store`.
        weight: [R] in the dtype of the row, of the latent's norm.
        eps: of the norms.
        q, q_weight: latents of the queries [T, Q], rows may be strided, and their norm's weight
            [Q], or both None.

    Returns:
        [T, Q]: the latents of the queries, normalised; None without them. All is rounded after
        each norm, its weight and the rotation, as the three ops round.
    """


@op("attn.merge", major=1, tier=0)
def merge(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Combine attention over two disjoint sets of keys.

    Args:
        o1, o2: [T, H, D] of equal dtype.
        lse1, lse2: [T, H] float32; -inf marks a set without keys, whose o may be anything finite.

    Returns:
        o [T, H, D] in the dtype of o1 and lse [T, H], as attention over both sets would give;
        zeros and -inf where both are empty.
    """
