"""The response object of the Responses protocol, and the request settings that it repeats."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..jsontext import shortest_f32
from .generator import Usage


@dataclass(frozen=True, slots=True)
class ResponsesEcho:
    """Request settings that response objects report, as the request gave them."""

    instructions: str | None = field(default=None, init=False)
    max_output_tokens: int | None = field(default=None, init=False)
    temperature: float = field(default=1.0, init=False)
    """The requested temperature or 1.0, not the one that is sampled with."""
    top_p: float = field(default=1.0, init=False)
    """The requested value or 1.0, not the one that is sampled with."""
    top_logprobs: int = field(default=0, init=False)
    user: str | None = field(default=None, init=False)
    _reasoning: dict[str, Any] = field(
        default_factory=lambda: {"effort": None, "summary": None}, init=False, repr=False
    )
    _text: dict[str, Any] = field(
        default_factory=lambda: {"format": {"type": "text"}, "verbosity": None},
        init=False,
        repr=False,
    )
    _tool_choice: Any = field(default="auto", init=False, repr=False)
    _tools: list[dict[str, Any]] = field(default_factory=list, init=False, repr=False)


def make_echo(**settings: Any) -> ResponsesEcho:
    """Return the echo of a request. Settings left out are those of an unspecified request."""
    echo = ResponsesEcho()
    for name, value in settings.items():
        object.__setattr__(echo, name, value)
    return echo


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseState:
    """How far a response has come."""

    status: str = "in_progress"
    completed_at: int | None = None
    incomplete_reason: str | None = None
    output: list[dict[str, Any]] = field(default_factory=list)
    usage: Usage | None = None


def response_object(
    id: str, model: str, created: int, echo: ResponsesEcho, state: ResponseState
) -> dict[str, Any]:
    """Return a response object in the given state."""
    reason = state.incomplete_reason
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "status": state.status,
        "background": False,
        "completed_at": state.completed_at,
        "content_filters": None,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": echo.instructions,
        "max_output_tokens": echo.max_output_tokens,
        "max_tool_calls": None,
        "model": model,
        "moderation": None,
        "output": state.output,
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "reasoning": echo._reasoning,
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": shortest_f32(echo.temperature),
        "text": echo._text,
        "tool_choice": echo._tool_choice,
        "tools": echo._tools,
        "top_logprobs": echo.top_logprobs,
        "top_p": shortest_f32(echo.top_p),
        "truncation": "disabled",
        "usage": None if state.usage is None else _usage(state.usage),
        "user": echo.user,
        "metadata": {},
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cache_hit_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
