"""What passes between scheduler and runner: host integers down, host integers up.

Owns the vocabulary of one step. Knows no tensor and no request object; `request_ids` are the
scheduler's own keys, which the runner hands through untouched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from deepinfer_core.images import ImageSpan
from deepinfer_core.sampling_params import SamplingParams

UNKNOWN_TOKEN_ID = -1
"""A token that the host has not seen yet; the runner gathers it from the token pool."""
NO_TOKEN_ID = -2
"""Before the first token."""


@dataclass(frozen=True, slots=True)
class RowStart:
    """What the runner keeps about a request from the step in which it takes its row."""

    row: int
    params: SamplingParams
    seed: int
    """64-bit key of the random numbers; never None."""
    sample_index: int
    """0 .. n-1, part of the random counter."""
    prompt_token_ids: Sequence[int]
    stop_token_ids: frozenset[int]
    """End-of-sequence ids and the request's own, masked until `min_tokens`."""
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    """`bad_words` as token sequences."""
    output_token_ids: Sequence[int] = ()
    """Drawn before, by a request that had to give up an earlier row."""
    images: Sequence[ImageSpan] = ()
    """In the order of the prompt. The runner keeps them as long as the row has this owner."""


@dataclass(frozen=True, slots=True)
class BlockUpdate:
    """How a row's table changed: `block_table[first_index:] = block_ids`, to the table's end.

    A plan holds at most one per row and group. Entries may become 0 when they leave a window.
    """

    group: int
    row: int
    first_index: int
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class PromptLogprobsPlan:
    """Log-probabilities wanted for the prompt tokens that one scheduled chunk predicts."""

    index: int
    """Index into `StepPlan.rows`."""
    num_logprobs: int
    target_token_ids: Sequence[int]
    """The prompt ids at positions start+1 ..; at most one per scheduled token."""


@dataclass(slots=True)
class StepPlan:
    """One step. Parallel lists: index i is one scheduled request.

    INVARIANT: `sum(num_scheduled_tokens) == len(token_ids)`, every entry is at least 1, and a row
    appears at most once in `rows` and at most once in `sample_rows`.
    """

    step_id: int
    request_ids: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    """Position of the first token that the step computes for request i."""
    num_scheduled_tokens: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    """Input ids of the step, request after request; UNKNOWN_TOKEN_ID where in flight."""

    history_token_ids: list[int] = field(default_factory=list)
    """The ids just before each request's first one, request after request and as many each as
    the model wants; NO_TOKEN_ID before the start."""

    sample_request_ids: list[int] = field(default_factory=list)
    sample_rows: list[int] = field(default_factory=list)
    """Rows that draw a token. Forked samples (`n`) draw from another request's logits."""
    sample_sources: list[int] = field(default_factory=list)
    """Index i whose last scheduled token, drafts not counted, gives the logits."""
    sample_positions: list[int] = field(default_factory=list)
    """Absolute position of the token to be drawn; with drafts, of the first."""
    num_drafts: dict[int, int] = field(default_factory=dict)
    """Index into `sample_rows` -> how many drafts are its source's last scheduled tokens. It draws
    behind each of them too. Absent: none."""

    following_token_ids: list[int] = field(default_factory=list)
    """The id behind each request's last one, which a drafter reads too; UNKNOWN_TOKEN_ID where it
    is drawn by this step. Empty: no drafter takes the step in."""
    num_to_draft: dict[int, int] = field(default_factory=dict)
    """Index into `sample_rows` -> how many tokens to draft behind the last one it draws. No two
    have the same source."""

    replays: list[tuple[int, int]] = field(default_factory=list)
    """(index into `rows`, tokens of its prefix hit) of requests that compute some of these tokens
    again: to rebuild windows, not to write what is cached."""
    prompt_logprobs: list[PromptLogprobsPlan] = field(default_factory=list)
    row_starts: list[RowStart] = field(default_factory=list)
    row_frees: list[int] = field(default_factory=list)
    """Rows given back since the last plan; handled before `row_starts`."""
    block_updates: list[BlockUpdate] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    """(source, destination) blocks, copied before the forward."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of one token and of the most likely ones at its position."""

    token_id: int
    logprob: float
    rank: int
    """1 is the most likely token; ties go to the lower id."""
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """What a drafter guesses behind the last token of a row."""

    token_ids: Sequence[int]
    confidence: Sequence[float] | None = None
    """How likely each is to be accepted if those before it are; None: it does not say."""


@dataclass(slots=True)
class StepOutput:
    """What a settled step produced, parallel to `StepPlan.sample_rows`."""

    token_ids: Sequence[Sequence[int]]
    """What each sampled row drew: one id, and one more for each draft that is accepted. Where
    `errors` has the row, the ids before the failure."""
    logprobs: list[list[TokenLogprobs] | None] | None = None
    """None when no row of the step asked for them."""
    prompt_logprobs: list[list[TokenLogprobs]] = field(default_factory=list)
    """Parallel to `StepPlan.prompt_logprobs`."""
    errors: dict[int, str] = field(default_factory=dict)
    """Sampled index -> why that request must end (for example: nothing left to draw)."""
    drafts: dict[int, DraftedTokens] = field(default_factory=dict)
    """Sampled index -> what was drafted behind it, see `StepPlan.num_to_draft`."""
