"""Specs of the n-gram memory: rows of a large table, found by hashing, gated into the streams.

Cheng et al. 2026 (Engram), in the form of DeepSeek-V4.1, section 2.4: no convolution.
"""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor, dtype


@op("engram.lookup", major=1, tier=2, features={"quantized"})
def lookup(
    tokens: Tensor,
    multipliers: Tensor,
    primes: Tensor,
    table: Tensor,
    scales: Tensor | None,
    out_dtype: dtype,
) -> Tensor:
    """Hash the n-grams that end in each token, and read their rows.

    With h(s) the exclusive or of tokens[t, i] * multipliers[i] over i <= s, the n-gram of s + 1
    tokens has, for head j, row h(s) mod primes[s - 1, j] of a stretch of so many rows; stretches
    follow one another in the order of `primes`.

    Args:
        tokens: [T, N] int64, the newest token first; 0 <= token, and products stay in 63 bits.
        multipliers: [N] int64.
        primes: [N - 1, heads] int64: of 2-grams, 3-grams and so on.
        table: [sum of primes, D], of `out_dtype`, or float8_e4m3fn codes (feature `quantized`).
        scales: [rows of the table, ceil(D / 32)] float8_e8m0fnu of the codes, or None.
        out_dtype: float32, bfloat16 or float16.

    Returns:
        [T, (N - 1) * heads * D]: the rows of a token side by side, in the order of `primes`.
    """


@op("engram.gate", major=1, tier=2)
def gate(
    streams: Tensor,
    keys: Tensor,
    values: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    skip: Tensor | None = None,
) -> Tensor:
    """Add a value to each stream, as far as the stream agrees with its key.

    With d the dot product of the stream, normalised and weighted, and the key, likewise, over
    sqrt(D), the gate is sigmoid(s) with s = sqrt(max(|d|, 1e-6)), negative where d is.

    Args:
        streams, keys: [T, n, D].
        values: [T, D].
        q_weight, k_weight: [n, D], weights of the norms of streams and keys.
        eps: added to the mean squares before the root.
        skip: [T] bool, tokens whose streams stay as they are; None = none.

    Returns:
        [T, n, D] in the dtype of streams, worked out in float32.
    """
