"""References of the matrix products."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, dtype

from deepinfer_core.host_machine import cpu_features
from deepinfer_core.ops.reference.act import silu_mul
from deepinfer_core.ops.reference.codes import decode_weight
from deepinfer_core.ops.reference.quant import find_scheme
from deepinfer_core.plugin_api.kernel import Problem

MIN_ROWS_TO_WIDEN = 8
"""float16 rows from which converting the weights costs less than slow products: measured."""

MAX_FLAT_ROWS = 4
MAX_FLAT_SIZE = 3072
"""float32 rows, and numbers in them, up to which weight @ x^T is quicker than x @ weight^T, by a
third, while beyond it is slower: measured with weights of 576 to 4096 columns."""

PACKED_FOR_ROWS = 16
"""The batch that a packed layout is chosen for: measured, good for any."""
MIN_PACKED_ROWS = 4
"""float32 rows below which a product with a packed weight takes longer than with so many."""


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.dense`."""
    return linear(x, weight, bias)


def gated(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, limit: float | None = None
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.gated`."""
    return silu_mul(linear(x, weight, bias), limit)


def batched(x: Tensor, weight: Tensor) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.batched`."""
    return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


def prepare(problem: Problem, weight: Tensor) -> Tensor:
    """The `prepare` of `gemm.dense`: oneDNN's own layout, where it multiplies quicker from it.

    Without it each product of several rows lays the weight out anew.
    """
    if weight.device.type != "cpu" or not packs(weight.dtype):
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
    return packed


def scaled(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    scheme: str,
    out_dtype: dtype,
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.scaled`."""
    return multiply_scaled(linear, q, scales, weight, weight_scales, scheme).to(out_dtype)


def coded(
    x: Tensor, codes: Tensor, scales: Tensor, scheme: str, bias: Tensor | None = None
) -> Tensor:
    """See `deepinfer_core.ops.specs.gemm.coded`."""
    return linear(x, decode_weight(codes, scales, scheme, x.dtype), bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight^T + bias by the quickest way that the shape allows.

    Choices for the CPU were measured with weights larger than the caches.
    """
    num_rows = x.shape[0]
    if weight.is_mkldnn:
        return _packed_linear(x, weight, bias)
    if x.device.type != "cpu" or not num_rows:
        return F.linear(x, weight, bias)
    if x.dtype == torch.float32 and has_onednn():
        if num_rows <= MAX_FLAT_ROWS and max(num_rows, 2) * x.shape[1] <= MAX_FLAT_SIZE:
            return _flat_linear(x, weight, bias)
        return _onednn_linear(x, weight, bias)
    if x.dtype == torch.float16 and num_rows >= MIN_ROWS_TO_WIDEN and not has_native_float16():
        wide_bias = None if bias is None else bias.float()
        return linear(x.float(), weight.float(), wide_bias).to(x.dtype)
    if x.dtype == torch.bfloat16 and num_rows == 1 and has_matrix_tiles():
        row = torch.mv(weight, x[0]) if bias is None else torch.addmv(bias, weight, x[0])
        return row.unsqueeze(0)
    return F.linear(x, weight, bias)


@cache
def has_matrix_tiles() -> bool:
    """Whether this CPU has AMX, through which `F.linear` takes half as long again for one row.

    Without it a matrix-vector product is the slower way, by as much or more.
    """
    return "amx_bf16" in cpu_features()


@cache
def has_onednn() -> bool:
    """Whether this torch multiplies through oneDNN on the CPU."""
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


@cache
def has_native_float16() -> bool:
    """Whether this CPU multiplies float16 without a detour, one element at a time."""
    return has_onednn() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def multiply_scaled(
    product: Callable[[Tensor, Tensor], Tensor],
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    scheme: str,
) -> Tensor:
    """`gemm.scaled` in float32 over any float32 product."""
    group = find_scheme(scheme).group
    if group is None:
        out = product(q.float(), weight.float())
        return out.mul_(scales.unsqueeze(1)).mul_(weight_scales)
    return product(
        q.float() * _expand_blocks(group, scales, q.shape[1]),
        weight.float() * _expand_blocks(group, weight_scales, *weight.shape),
    )


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # F.linear takes another library for float32, a sixth slower and less steady in its rounding.
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, "none", [], "")
    return out


def _packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    num_rows = x.shape[0]
    if not num_rows:
        return x.new_empty(0, weight.shape[0])
    if x.dtype == torch.float32 and num_rows < MIN_PACKED_ROWS:
        return _onednn_linear(F.pad(x, (0, 0, 0, MIN_PACKED_ROWS - num_rows)), weight, bias)[
            :num_rows
        ]
    return _onednn_linear(x, weight, bias)


def packs(dtype: torch.dtype) -> bool:
    """Whether weights of this dtype get oneDNN's own layout on this CPU."""
    if not has_onednn():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def _flat_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    num_rows = x.shape[0]
    if num_rows == 1:
        x = x.expand(2, -1).contiguous()  # a product with one vector takes the slower way
    product = torch.mm(weight, x.t())[:, :num_rows].t().contiguous()
    return product if bias is None else product.add_(bias)


def _expand_blocks(group: int, scales: Tensor, *sizes: int) -> Tensor:
    """Repeat each scale over its elements in the last axis, or with two sizes in both."""
    for axis, size in zip(range(-len(sizes), 0), sizes, strict=True):
        scales = scales.repeat_interleave(group, dim=axis).narrow(axis, 0, size)
    return scales
