"""Specs of hyper-connections: n residual streams per token, mixed by learned coefficients.

Xie et al. 2026 (manifold-constrained hyper-connections), as in DeepSeek-V4, section 2.2.
"""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor


@op("hc.pre", major=1, tier=2, features={"delayed"})
def pre(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm_eps: float,
    eps: float,
    num_iters: int,
    previous: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Work out a sublayer's coefficients, and collapse the streams into its input.

    With z = fn . vec(streams) / rms(vec(streams)): pre = sigmoid(scale0 z + base) + eps, post =
    2 sigmoid(scale1 z + base), and the mixing matrix is softmax_rows(scale2 Z + base) + eps, made
    doubly stochastic by `num_iters` rounds of Sinkhorn and Knopp that begin with the columns.

    Args:
        streams: [T, n, D].
        fn: [2n + n * n, n * D] float32: rows of pre, post, and the matrix row by row.
        base: [2n + n * n] float32.
        scale: [3] float32.
        norm_eps: added to the mean square before the root.
        eps: floor of coefficients and sums.
        num_iters: at least 1.
        previous: [T, n] float32, the pre of the sublayer before, to collapse with instead of
            this one's, which the next sublayer wants (feature `delayed`, DeepSeek-V4.1).

    Returns:
        u [T, D] in the dtype of streams, the sum of pre_i times stream i; post [T, n] float32;
        mix [T, n, n] float32; with `previous` also pre [T, n] float32.
    """


@op("hc.post", major=1, tier=2)
def post(y: Tensor, streams: Tensor, post: Tensor, mix: Tensor) -> Tensor:
    """Add a sublayer's output to the mixed streams.

    Args:
        y: [T, D].
        streams: [T, n, D] that the sublayer began with.
        post: [T, n], mix: [T, n, n], as `hc.pre` gives them.

    Returns:
        [T, n, D]: stream k is post[k] * y + the sum over j of mix[j, k] * stream j.
    """


@op("hc.head", major=1, tier=2)
def head(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm_eps: float, eps: float
) -> Tensor:
    """Collapse the streams for the last norm, with coefficients as `hc.pre` makes its first.

    Args:
        streams: [T, n, D].
        fn: [n, n * D] float32; base: [n] float32; scale: [1] float32.
        norm_eps: added to the mean square before the root.
        eps: floor of the coefficients.

    Returns:
        [T, D] in the dtype of streams.
    """


@op("hc.collapse", major=1, tier=2)
def collapse(streams: Tensor, weights: Tensor) -> Tensor:
    """Collapse the streams with given coefficients.

    Args:
        streams: [T, n, D].
        weights: [T, n] float32.

    Returns:
        [T, D] in the dtype of streams: the sum of weight i times stream i, in float32.
    """
