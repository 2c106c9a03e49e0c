"""The kernels, with the signatures of the op specs: tensors become addresses, sizes and strides."""

from __future__ import annotations

import math

import torch
from deepinfer_core.ops.meta import AttentionMeta
from torch import Tensor

from deepinfer_cpu.library import DTYPE_CODES, library
from deepinfer_cpu.weights import PANEL_ROWS

_CODES = {getattr(torch, name): code for name, code in DTYPE_CODES.items()}

_library = library()
_library.share_threads()
_rms = _library.function("rms")
_silu_mul = _library.function("silu_mul")
_rope = _library.function("rope")
_store = _library.function("store")
_paged = _library.function("paged")
_dense = _library.function("dense")

_empty = torch.empty
_num_threads = torch.get_num_threads


def rms(
    x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    num_tokens, width = x.shape
    y = _empty((num_tokens, width), dtype=x.dtype)
    total = None if residual is None else _empty((num_tokens, width), dtype=x.dtype)
    _rms(
        _CODES[x.dtype],
        x.data_ptr(),
        x.stride(0),
        None if weight is None else weight.data_ptr(),
        eps,
        None if residual is None else residual.data_ptr(),
        0 if residual is None else residual.stride(0),
        y.data_ptr(),
        None if total is None else total.data_ptr(),
        num_tokens,
        width,
        _num_threads(),
    )
    return y, total


def silu_mul(x: Tensor, limit: float | None = None) -> Tensor:
    num_tokens, width = x.shape[0], x.shape[1] // 2
    y = _empty((num_tokens, width), dtype=x.dtype)
    _silu_mul(
        _CODES[x.dtype],
        x.data_ptr(),
        x.stride(0),
        y.data_ptr(),
        num_tokens,
        width,
        math.inf if limit is None else limit,
        _num_threads(),
    )
    return y


def rope(
    q: Tensor,
    k: Tensor | None,
    positions: Tensor,
    cos_sin: Tensor,
    layout: str = "half",
    inverse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    is_interleaved = layout == "interleaved"
    rotated_k = None if k is None else _rotate(k, positions, cos_sin, is_interleaved, inverse)
    return _rotate(q, positions, cos_sin, is_interleaved, inverse), rotated_k


def _rotate(
    x: Tensor, positions: Tensor, cos_sin: Tensor, is_interleaved: bool, is_inverse: bool
) -> Tensor:
    if x.stride(2) != 1:
        x = x.contiguous()
    num_tokens, num_heads, head_dim = x.shape
    y = _empty((num_tokens, num_heads, head_dim), dtype=x.dtype)
    _rope(
        _CODES[x.dtype],
        x.data_ptr(),
        x.stride(0),
        x.stride(1),
        y.data_ptr(),
        positions.data_ptr(),
        cos_sin.data_ptr(),
        cos_sin.stride(0),
        num_tokens,
        num_heads,
        head_dim,
        cos_sin.shape[1],
        is_interleaved,
        is_inverse,
        _num_threads(),
    )
    return y


def store(
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    slot_mapping: Tensor,
    plan: object | None = None,
) -> None:
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    size = k_cache.element_size()
    # One row may serve as key and value, and then there is no v.
    v_place = (None, 0) if v is None else (v.data_ptr(), v.stride(0) * size)
    v_to = (None, 0) if v_cache is None else (v_cache.data_ptr(), v_cache.stride(0) * size)
    _store(
        k.data_ptr(),
        k.stride(0) * size,
        *v_place,
        k_cache.data_ptr(),
        k_cache.stride(0) * size,
        *v_to,
        slot_mapping.data_ptr(),
        k.shape[0],
        block_size,
        num_kv_heads * head_dim * size,
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
    num_tokens, num_q_heads, head_dim = q.shape
    o = _empty((num_tokens, num_q_heads, head_dim), dtype=q.dtype)
    lse = _empty((num_tokens, num_q_heads), dtype=torch.float32) if return_lse else None
    if sinks is not None:
        sinks = sinks.float().contiguous()
    tables = meta.block_tables
    _paged(
        _CODES[q.dtype],
        q.data_ptr(),
        q.stride(0),
        k_cache.data_ptr(),
        k_cache.stride(0),
        v_cache.data_ptr(),
        v_cache.stride(0),
        meta.cu_seqlens_q.data_ptr(),
        meta.seq_lens.data_ptr(),
        tables.data_ptr(),
        tables.stride(0),
        tables.shape[0],
        meta.block_size,
        num_q_heads,
        k_cache.shape[2],
        head_dim,
        scale,
        window or 0,
        None if sinks is None else sinks.data_ptr(),
        softcap or 0.0,
        o.data_ptr(),
        None if lse is None else lse.data_ptr(),
        _num_threads(),
    )
    return o if lse is None else (o, lse)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    num_tokens, in_features = x.shape
    is_packed = weight.dim() == 3
    out_features = weight.shape[0] * PANEL_ROWS if is_packed else weight.shape[0]
    y = _empty((num_tokens, out_features), dtype=x.dtype)
    _dense(
        _CODES[x.dtype],
        x.data_ptr(),
        x.stride(0),
        weight.data_ptr(),
        weight.stride(0),
        is_packed,
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        num_tokens,
        in_features,
        out_features,
        _num_threads(),
    )
    return y
