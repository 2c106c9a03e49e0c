"""Specs of the matrix products."""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor, dtype


@op("gemm.dense", major=1, tier=0, features={"bias"}, weight="weight")
def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows by a weight matrix that lies as checkpoints hold it.

    Args:
        x: [T, K]; rows may be strided.
        weight: [N, K] in the dtype of x, or what the kernel's `prepare` made of it.
        bias: [N] in the dtype of x, or None.

    Returns:
        x @ weight^T + bias, [T, N] in the dtype of x, accumulated in float32.
    """


@op("gemm.gated", major=1, tier=0, features={"bias", "limit"})
def gated(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, limit: float | None = None
) -> Tensor:
    """Multiply by the matrices of a gate and of what it gates: `gemm.dense`, `act.silu_mul` in one.

    Layers use it where a kernel is quicker than those two one after another.

    Args:
        x: [T, K]; rows may be strided.
        weight: [2F, K] in the dtype of x, gate rows first.
        bias: [2F] in the dtype of x, or None.
        limit: as in `act.silu_mul`.

    Returns:
        [T, F] in the dtype of x: silu(gate) * up, each rounded as the two ops round.
    """


@op("gemm.batched", major=1, tier=1)
def batched(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply each group of a row by a matrix of its own.

    Args:
        x: [T, G, K]; any strides.
        weight: [G, N, K] in the dtype of x; any strides.

    Returns:
        [T, G, N] in the dtype of x, possibly strided, accumulated in float32.
    """


@op("gemm.scaled", major=1, tier=0)
def scaled(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    scheme: str,
    out_dtype: dtype,
) -> Tensor:
    """Multiply quantised rows by a quantised weight matrix.

    Args:
        q, scales: as `quant.act` gives them for the same scheme; q is [T, K].
        weight: [N, K] in the dtype of q.
        weight_scales: float32; [N] for the `_token` schemes; for the `_block` schemes one for each
            square block of weights, whose side is the group: [ceil(N / group), ceil(K / group)].
        scheme: as in `quant.act`.
        out_dtype: of the result.

    Returns:
        [T, N], the product of the dequantised factors, accumulated in int32 or float32.

    Raises:
        ValueError: the scheme is unknown.
    """


@op("gemm.coded", major=1, tier=1, features={"bias", "rounded_rows"})
def coded(
    x: Tensor, codes: Tensor, scales: Tensor, scheme: str, bias: Tensor | None = None
) -> Tensor:
    """Multiply rows by a weight matrix that stays as checkpoints store it: codes with scales.

    The feature `rounded_rows` is a permission: the kernel may round x as `quant.act` does under
    `fp8_block128`, since the model was trained to bear it (arXiv:2412.19437, section 3.3).

    Args:
        x: [T, K]; rows may be strided.
        codes: [N, K] float8_e4m3fn, or for `mxfp4` [N, K / 2] uint8, two e2m1 codes a byte, the
            even column in the low half.
        scales: float32, one for each square block of weights: [ceil(N / 128), ceil(K / 128)] for
            `fp8_block128`, of 32 for `fp8_block32`. For `mxfp4` [N, K / 32] uint8, where b means
            2^(b - 127).
        scheme: `fp8_block128`, `fp8_block32` or `mxfp4`.
        bias: [N] in the dtype of x, or None.

    Returns:
        x @ weight^T + bias, [T, N] in the dtype of x, accumulated in float32. The weight is each
        code times its scale, rounded to the dtype of x at most once.

    Raises:
        ValueError: the scheme is unknown.
    """
