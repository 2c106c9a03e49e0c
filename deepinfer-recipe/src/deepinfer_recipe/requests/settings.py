"""Rules that the protocols share for model, thinking, sampling, lengths and stop sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..conversation import ReasoningEffort
from .body import BodyError, optional, read_list, read_map, read_name, read_str, read_uint, required
from .errors import bad_request
from .options import ConversionOptions, ModelVersion

_EFFORTS: dict[str, ReasoningEffort] = {
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "xhigh",
    "ultra": "max",
    "max": "max",
}
read_effort = read_name("none", *_EFFORTS)


def read_thinking(value: Any) -> bool:
    """Read a `thinking` object; True means on."""
    fields = read_map(value, "internally tagged enum Thinking")
    kind = required(fields, "type", read_name("adaptive", "enabled", "disabled"))
    optional(fields, "budget_tokens", read_uint(64))
    return kind != "disabled"


def read_stop(value: Any) -> str | list[str]:
    """Read stop sequences: a string or a list of strings."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BodyError("expected a string or a list")
    return read_list(read_str)(value)


def resolve_model(model: str, options: ConversionOptions) -> ModelVersion:
    """Return the version of a model name.

    Raises:
        ConversionError: the name is not accepted.
    """
    models = options.model_versions_by_name
    if model not in models:
        names = ", ".join(models)
        raise bad_request(f"The supported API model names are {names}, but you passed {model}.")
    return models[model]


def resolve_thinking(
    thinking: bool | None, effort: str | None, options: ConversionOptions
) -> tuple[bool, ReasoningEffort | None]:
    """Return the thinking mode and, if it is on, the effort."""
    if thinking is None:
        thinking = options.default_thinking_mode if effort is None else effort != "none"
    if not thinking:
        return False, None
    return True, _EFFORTS.get(effort or "high", "high")


def resolve_temperature(temperature: float | None, *, thinking: bool) -> float:
    """Return the temperature to sample with.

    Raises:
        ConversionError: it is out of range.
    """
    if temperature is not None and not 0 <= temperature <= 2:
        raise bad_request("Invalid temperature value, the valid range of temperature is [0, 2]")
    return 1.0 if thinking or temperature is None else temperature


def resolve_top_p(
    top_p: float | None, version: ModelVersion, *, thinking: bool, has_tools: bool
) -> float:
    """Return the top_p to sample with; a thinking V4 has its own, whatever is requested.

    Raises:
        ConversionError: it is out of range.
    """
    if top_p is not None and not 0 < top_p <= 1:
        raise bad_request("Invalid top_p value, the valid range of top_p is (0, 1.0]")
    if version is ModelVersion.DeepseekV4Pro and thinking:
        return _TOP_P_FLOOR if has_tools else 1.0
    if top_p is None:
        return 1.0
    if version is ModelVersion.DeepseekV41Flash:
        return max(top_p, _TOP_P_FLOOR) if thinking else 1.0
    return top_p


def upper_bound(options: ConversionOptions, *, thinking: bool) -> int:
    """Return the largest `max_tokens` in a mode."""
    if thinking:
        return options.thinking_max_tokens_upper_bound
    return options.non_thinking_max_tokens_upper_bound


def check_max_tokens(max_tokens: int | None, bound: int) -> int | None:
    """Return `max_tokens` if it is in [1, bound].

    Raises:
        ConversionError: it is not.
    """
    if max_tokens is not None and not 1 <= max_tokens <= bound:
        raise bad_request(
            f"Invalid max_tokens value, the valid range of max_tokens is [1, {bound}]"
        )
    return max_tokens


def check_stop(stop: str | Sequence[str] | None) -> list[str]:
    """Return the stop sequences as a list.

    Raises:
        ConversionError: more than 16, or an empty one.
    """
    if stop is None:
        return []
    names = ["stop"] if isinstance(stop, str) else [f"stop[{i}]" for i in range(len(stop))]
    texts = [stop] if isinstance(stop, str) else list(stop)
    if len(texts) > _MAX_STOPS:
        raise bad_request(f"Stop string array too long: {len(texts)}")
    for name, text in zip(names, texts, strict=True):
        if not text:
            raise bad_request(
                f"Invalid '{name}': empty string. Expected a string with minimum length 1, "
                "but got an empty string instead."
            )
    return texts


def check_top_logprobs(top_logprobs: int | None) -> int | None:
    """Return `top_logprobs` if it is at most 20.

    Raises:
        ConversionError: it is more.
    """
    if top_logprobs is not None and top_logprobs > _MAX_TOP_LOGPROBS:
        raise bad_request(
            "Invalid top_logprobs value, the valid range of top_logprobs is "
            f"[0, {_MAX_TOP_LOGPROBS}]."
        )
    return top_logprobs


def contains_json_word(texts: Sequence[str]) -> bool:
    """Whether some text holds the word json, in any ASCII case."""
    return any("json" in text.translate(_ASCII_LOWER) for text in texts)


_TOP_P_FLOOR = 0.949999988079071044921875  # 0.95 as a 32-bit float
_MAX_STOPS = 16
_MAX_TOP_LOGPROBS = 20
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
