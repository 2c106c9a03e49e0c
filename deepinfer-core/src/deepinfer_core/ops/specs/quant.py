"""Specs of the quantisation of activations."""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.ops.records import Record


@op("quant.act", major=1, tier=0)
def act(x: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """Quantise rows symmetrically.

    A group of elements shares scale = amax / qmax in float32 (1 where all are zero), and
    q = round_half_even(float32(x) / scale), so that x is about q * scale.

    Args:
        x: [T, C], finite.
        scheme: `int8_token`: int8, qmax 127, one group per row. `fp8_token`: float8 e4m3fn,
            qmax 448, one group per row. `fp8_block128`: the same in groups of 128 consecutive
            elements, the last one possibly shorter. `fp8_block128_ue8m0` and
            `fp8_block32_ue8m0`: in groups of 128 or 32, with powers of two as scales, the
            smallest no less than max(amax, 1e-4) / 448, as DeepSeek-V4 and V4.1 round.

    Returns:
        q [T, C], and scales float32, [T] or [T, ceil(C / group)].

    Raises:
        ValueError: the scheme is unknown.
    """


@op("quant.encode", major=1, tier=1)
def encode(x: Tensor, record: Record) -> Tensor:
    """Round rows to records of the KV cache.

    Args:
        x: [T, W], finite; rows may be strided.
        record: its format is also the scheme that the op is bound for. The bytes are exactly
            those that the formulas of `docs/kv-records.md` give, whatever the dtype of x.

    Returns:
        [T, record.num_bytes] uint8.
    """


@op("quant.decode", major=1, tier=1)
def decode(data: Tensor, record: Record) -> Tensor:
    """Say what records stand for.

    Args:
        data: [T, record.num_bytes] uint8, as `quant.encode` gives it.
        record: its format is also the scheme that the op is bound for.

    Returns:
        [T, W] float32, exactly; of turned rows the turned ones.
    """
