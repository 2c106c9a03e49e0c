"""Signatures of the sampling ops. n logits rows, V vocabulary, K candidates; logits are float32.

Every row is computed as if it were alone: its bits never depend on the other rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.ops.spec import op
from deepinfer_core.plugin_api.kernel import Caps, KernelSpec

if TYPE_CHECKING:
    from torch import Tensor


@op("sample.mask", major=1, tier=0)
def mask(logits: Tensor, bitmask: Tensor, rows: Tensor | None = None) -> Tensor:
    """Forbid the tokens whose bit is 0, in place.

    Args:
        logits: [L, V] float32, modified.
        bitmask: [n, ceil(V / 32)] int32; bit v % 32 of word v // 32 belongs to token v.
        rows: [n] int64, the logits rows that `bitmask` is for; None: all, in order.

    Returns:
        `logits`, with -inf at forbidden tokens.
    """


@op("sample.penalties", major=1, tier=0)
def penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    counts: Tensor,
    slots: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Apply repetition, then frequency and presence penalties, in place.

    Repetition (arXiv:1909.05858, section 4.1) divides positive and multiplies other logits of
    tokens in prompt or output; the others subtract `frequency * count` and then `presence` from
    tokens in the output.

    Args:
        logits: [n, V] float32, modified.
        prompt_mask: [num_slots, V] bool, tokens of the prompt.
        counts: [num_slots, V] int32, occurrences in the output.
        slots: [n] int64, row of `prompt_mask` and `counts` for each logits row.
        repetition, presence, frequency: [n] float32; 1, 0 and 0 are neutral.

    Returns:
        `logits`.
    """


@op("sample.stages", major=1, tier=0)
def stages(
    logits: Tensor,
    temperature: Tensor,
    min_p: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    max_top_k: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Temperature, min_p, top_k and top_p, in this order; what is dropped becomes -inf.

    Tokens are ranked by logit, ties to the lower id. The row's maximum is subtracted before the
    division by the temperature. top_p keeps a token iff the probability of the better ones that
    min_p and top_k left is below it; weights are 40-bit fixed point, so sums are exact.

    Args:
        logits: [n, V] float32, may be modified.
        temperature: [n] float32, above 0.
        min_p: [n] float32; None: 0, off.
        top_k: [n] int64; 0 keeps all. None: off.
        top_p: [n] float32; None: 1, off.
        max_top_k: promises 1 <= top_k <= max_top_k for every row; the result then holds
            only candidates.

    Returns:
        logits [n, V] and None, or logits [n, K] and token ids [n, K] int64 with
        K = min(max_top_k, V), best first.
    """


@op("sample.draw", major=1, tier=0)
def draw(
    logits: Tensor,
    token_ids: Tensor | None = None,
    seeds: Tensor | None = None,
    sample_indices: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """argmax(logits + Gumbel noise) in float32, ties to the lower id.

    Noise of token v: Philox4x32-10 with the seed as key and counter (position, sample index, 0,
    v // 4), lane v % 4, u = ((word >> 8) + 0.5) * 2^-24, -log(-log(u)) in float64 rounded to
    float32.

    Args:
        logits: [n, V] or, with token_ids, [n, K] float32.
        token_ids: [n, K] int64, the tokens that the columns stand for; None: all.
        seeds: [n] int64 in two's complement; None: no noise (greedy).
        sample_indices, positions: [n] int64; required with seeds.

    Returns:
        [n] int32. A valid id even where a row is all -inf or holds NaN.
    """


@op("sample.logprobs", major=1, tier=0)
def logprobs(
    logits: Tensor, token_ids: Tensor, num_logprobs: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities of chosen and of the most likely tokens.

    Args:
        logits: [n, V] float32.
        token_ids: [n] int32 or int64.
        num_logprobs: how many of the most likely tokens; 0 for none. Cut to V.

    Returns:
        logprobs [n] float32 and ranks [n] int32 (1 is the most likely, ties to the lower id) of
        `token_ids`; ids [n, k] int32 and logprobs [n, k] float32 of the k most likely, best
        first. -inf at tokens that cannot be drawn.
    """


SAMPLE_KERNELS: tuple[KernelSpec, ...] = tuple(
    KernelSpec(
        op=f"sample.{name}@1",
        provider="torch.reference",
        target=f"deepinfer_core.ops.reference.sample:{name}",
        caps=Caps(
            device_kinds=("*",),
            features=frozenset({"batch_invariant", "deterministic", "graph_safe", "empty_ok"}),
        ),
        priority=0,
    )
    for name in ("mask", "penalties", "stages", "draw", "logprobs")
)
"""The torch references. Rows are independent already, so there is no second provider."""
