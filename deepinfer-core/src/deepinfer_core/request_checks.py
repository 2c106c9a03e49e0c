"""What a request may ask: limits of model and pool, checked before anything is queued.

Pure: integers and parameters in, a checked request or a `RequestError` out. Every message holds
the value, the limit, and what to do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from deepinfer_core.errors import PromptTooLongError, RequestError, UnsupportedSamplingError
from deepinfer_core.images import ImageSpan, PreparedImage, no_tower, place_images
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core.models.vision.config import VisionConfig


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Facts about the engine that bound a request."""

    vocab_size: int
    max_model_len: int
    max_position: int
    """What the model was made for: `max_model_len` cannot be raised above it."""
    max_pool_tokens: int
    """Tokens of one request that the KV pool can hold at once."""
    eos_token_ids: tuple[int, ...]
    logits_stages: frozenset[str] = frozenset()
    """Names of the custom stages that plugins registered."""
    bounded_replay: bool = False
    """Tokens may be computed from windows cut short, which says nothing of a prompt."""
    vision: VisionConfig | None = None
    """What images must be prepared for; None: the model takes none."""


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """What the checks derived."""

    prompt_token_ids: list[int]
    stop_token_ids: frozenset[int]
    max_total_tokens: int
    bad_token_ids: tuple[tuple[int, ...], ...]
    images: tuple[ImageSpan, ...]


def check_request(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    limits: RequestLimits,
    encode_word: Callable[[str], list[int]],
    images: Sequence[PreparedImage] = (),
) -> CheckedRequest:
    """Check a prompt and its parameters against the limits.

    Args:
        images: one for each image token of the prompt, which is then replaced by as many as the
            image takes. Without any, image tokens are tokens like others.

    Raises:
        PromptTooLongError: the prompt leaves no room for one output token.
        UnsupportedSamplingError: a parameter does not fit this model.
        RequestError: the prompt is empty or holds an unknown token id, or its images cannot be
            served.
    """
    spans: tuple[ImageSpan, ...] = ()
    if images:
        if limits.vision is None:
            raise no_tower(len(images))
        image_token_id = limits.vision.image_token_id
        prompt_token_ids, spans = place_images(prompt_token_ids, images, image_token_id)
    prompt = _checked_prompt(prompt_token_ids, limits)
    _check_token_ids(params, limits)
    unknown_stages = sorted(set(params.logits_stages) - limits.logits_stages)
    if unknown_stages:
        known = ", ".join(sorted(limits.logits_stages)) or "none is registered"
        raise UnsupportedSamplingError(
            f"logits_stages: unknown {', '.join(unknown_stages)}; known: {known}",
            field="logits_stages",
        )
    wanted = limits.max_model_len if params.max_tokens is None else len(prompt) + params.max_tokens
    eos = () if params.ignore_eos else limits.eos_token_ids
    return CheckedRequest(
        prompt_token_ids=prompt,
        stop_token_ids=_token_set((*eos, *params.stop_token_ids)),
        max_total_tokens=min(wanted, limits.max_model_len, limits.max_pool_tokens),
        bad_token_ids=_bad_token_ids(params.bad_words, encode_word),
        images=spans,
    )


def check_priority(priority: object) -> int:
    """A priority that can be compared with any other.

    Raises:
        RequestError: it is no whole number.
    """
    try:
        return operator.index(priority)  # type: ignore[arg-type]
    except TypeError:
        raise RequestError(
            f"priority = {priority!r}: must be a whole number; lower goes first", field="priority"
        ) from None


@lru_cache(maxsize=64)
def _token_set(token_ids: tuple[int, ...]) -> frozenset[int]:
    """One set for all who stop alike: every step looks into that of every request."""
    return frozenset(token_ids)


def _checked_prompt(prompt_token_ids: Sequence[int], limits: RequestLimits) -> list[int]:
    try:
        prompt = [operator.index(token_id) for token_id in prompt_token_ids]
    except TypeError:
        raise RequestError(
            "prompt: token ids must be whole numbers", field="prompt_token_ids"
        ) from None
    if not prompt:
        raise RequestError(
            "prompt is empty: give at least one token (for example the begin-of-sequence token)",
            field="prompt",
        )
    for index, token_id in enumerate(prompt):
        if not 0 <= token_id < limits.vocab_size:
            raise RequestError(
                f"prompt token {index} is {token_id}, allowed are 0 to {limits.vocab_size - 1}",
                field="prompt_token_ids",
            )
    room = min(limits.max_model_len, limits.max_pool_tokens)
    if len(prompt) >= room:
        raise PromptTooLongError(
            f"prompt has {len(prompt)} tokens, at most {room - 1} fit beside one output token; "
            f"shorten it{_advice(limits)}",
            field="prompt",
        )
    return prompt


def _advice(limits: RequestLimits) -> str:
    if limits.max_pool_tokens < limits.max_model_len:
        return " or raise cache.num_blocks or cache.memory_fraction"
    if limits.max_model_len < limits.max_position:
        return f" or raise model.max_model_len (the model takes {limits.max_position})"
    return "; the model was made for no more"


def _check_token_ids(params: SamplingParams, limits: RequestLimits) -> None:
    named: list[tuple[str, Iterable[int]]] = [
        ("logit_bias", params.logit_bias or ()),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("stop_token_ids", params.stop_token_ids),
    ]
    for field, token_ids in named:
        for token_id in token_ids:
            if token_id >= limits.vocab_size:
                raise UnsupportedSamplingError(
                    f"{field} holds {token_id}, allowed are 0 to {limits.vocab_size - 1}",
                    field=field,
                )
    if limits.bounded_replay and params.prompt_logprobs is not None:
        raise UnsupportedSamplingError(
            f"prompt_logprobs = {params.prompt_logprobs} is not allowed with cache.bounded_replay, "
            "which computes prompt tokens approximately; turn one of them off",
            field="prompt_logprobs",
        )
    for field in ("logprobs", "prompt_logprobs"):
        wanted = getattr(params, field)
        if wanted is not None and wanted > limits.vocab_size:
            raise UnsupportedSamplingError(
                f"{field} = {wanted}, allowed are 0 to {limits.vocab_size} (the vocabulary)",
                field=field,
            )


def _bad_token_ids(
    words: Sequence[str], encode_word: Callable[[str], list[int]]
) -> tuple[tuple[int, ...], ...]:
    """Each word as it begins a text and as it follows a space."""
    sequences = (tuple(encode_word(text)) for word in words for text in (word, " " + word.lstrip()))
    return tuple(dict.fromkeys(sequence for sequence in sequences if sequence))
