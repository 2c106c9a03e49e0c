"""Specs of the mixture-of-experts ops."""

# mypy: disable-error-code="empty-body"
# A spec is a signature without a body.

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op

if TYPE_CHECKING:
    from torch import Tensor


@op(
    "moe.route",
    major=1,
    tier=0,
    features={"bias", "image_bias", "groups", "renormalize", "sigmoid", "sqrtsoftplus", "hash_ids"},
)
def route(
    logits: Tensor,
    top_k: int,
    scoring: str = "softmax",
    bias: Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    renormalize: bool = True,
    scale: float = 1.0,
    hash_ids: Tensor | None = None,
    image_bias: Tensor | None = None,
    is_image: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose the experts of each token and their weights.

    Args:
        logits: [T, E].
        top_k: experts per token.
        scoring: `softmax` over all experts, `sigmoid` or `sqrtsoftplus`, in float32.
        bias: [E] float32, added to the scores for the choice only, or None.
        num_groups: experts are split into this many equal consecutive groups; only those of the
            `top_groups` best groups may be chosen. A group is worth its best score, with a bias
            the sum of its two best.
        top_groups: how many groups stay.
        renormalize: divide the weights of a token by their sum.
        scale: factor of the weights, applied last.
        hash_ids: [T, top_k] int32, the experts of each token, chosen beforehand: only the weights
            come from the logits (feature `hash_ids`); or None.
        image_bias: [E] float32, instead of `bias` for tokens of images (feature `image_bias`);
            or None.
        is_image: [T] bool, which tokens those are; None = none of them.

    Returns:
        ids [T, top_k] int32, and weights [T, top_k] float32, the scores without bias; in
        descending order of weight. Among equals the lower id goes first, and the lower group.

    Raises:
        ValueError: the scoring is unknown.
    """


@op("moe.experts", major=1, tier=0, features={"limit", "expert_map"})
def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w13: Tensor,
    w2: Tensor,
    limit: float | None = None,
    expert_map: Tensor | None = None,
) -> Tensor:
    """Run each token through its experts and sum up, weighted.

    Args:
        x: [T, C].
        ids: [T, K] int32, weights: [T, K] float32, as `moe.route` gives them.
        w13: [E, 2F, C], gate rows first; w2: [E, C, F]; in the dtype of x.
        limit: as in `act.silu_mul`.
        expert_map: [number of all experts] int32, the local index of each, -1 where an expert is
            not here and adds nothing; None = all are here.

    Returns:
        [T, C] in the dtype of x: sum over k, in that order and in float32, of
        weights[:, k] * w2[e] @ (silu(gate) * up).
    """


@op("moe.coded", major=1, tier=1, features={"limit", "expert_map", "rounded_rows"})
def coded(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w13: Tensor,
    w13_scales: Tensor,
    w2: Tensor,
    w2_scales: Tensor,
    scheme: str,
    limit: float | None = None,
    expert_map: Tensor | None = None,
) -> Tensor:
    """Run each token through experts whose matrices stay codes with scales.

    The permission `rounded_rows` is as in `gemm.coded`, for the rows of both products.

    Args:
        x, ids, weights, limit, expert_map: as in `moe.experts`.
        w13, w2: codes of E matrices [2F, C], gate rows first, and [C, F], as in `gemm.coded`.
        w13_scales, w2_scales: theirs, as in `gemm.coded`.
        scheme: as in `gemm.coded`.

    Returns:
        as `moe.experts` with what the codes mean.

    Raises:
        ValueError: the scheme is unknown.
    """
