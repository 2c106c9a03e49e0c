"""One line of a batch file: a plain row or an OpenAI batch row, checked and made uniform.

Knows no model. What is wrong with a row is a `RequestError`, which ends that row only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from deepinfer_core.errors import RequestError, UnsupportedSamplingError
from deepinfer_core.faces.prompts import Prompt, parse_params
from deepinfer_core.field_types import short_repr
from deepinfer_core.sampling_params import SamplingParams

RowFormat = Literal["plain", "openai.chat", "openai.completion"]
_URLS: dict[str, RowFormat] = {
    "/v1/chat/completions": "openai.chat",
    "/v1/completions": "openai.completion",
}
_IGNORED = frozenset({"model", "user", "metadata", "store", "service_tier", "stream_options"})
"""Fields of an OpenAI body that do not change the answer."""
_CHAT_FIELDS = ("tools", "chat_template_kwargs")


@dataclass(frozen=True, slots=True)
class BatchRow:
    """What one row asks for. Exactly one of `prompt` and `messages` is set."""

    row_id: object
    format: RowFormat
    params: SamplingParams
    prompt: Prompt | None = None
    messages: list[Any] | None = None
    chat_options: dict[str, Any] = field(default_factory=dict)
    """`tools` and `chat_template_kwargs`, where the row gives them."""
    model_name: str | None = None
    """As the row calls the model; echoed in an OpenAI answer."""


def load_row(line: bytes) -> dict[str, Any]:
    """Decode one line.

    Raises:
        RequestError: not UTF-8, not JSON, or not a JSON object.
    """
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        raise RequestError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise RequestError("not usable JSON: nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise RequestError(f"a row is a JSON object, not {type(row).__name__}")
    return row


def row_id_of(row: Mapping[str, Any]) -> object:
    """The row's own id, or None.

    Raises:
        RequestError: the id is neither text nor a whole number.
    """
    name = "custom_id" if is_openai(row) else "id"
    row_id = row.get(name)
    if row_id is None:
        if name == "custom_id":
            raise RequestError("custom_id is missing", field=name)
        return None
    if isinstance(row_id, bool) or not isinstance(row_id, (str, int)):
        raise RequestError(
            f"{name} is text or a whole number, not {type(row_id).__name__}", field=name
        )
    return row_id


def is_openai(row: Mapping[str, Any]) -> bool:
    """Whether this is an OpenAI batch row rather than a plain one."""
    return "custom_id" in row or "body" in row


def format_of(row: Mapping[str, Any]) -> RowFormat:
    """How the answer will look, known even for a row that cannot be served."""
    return _URLS.get(str(row.get("url")), "openai.chat") if is_openai(row) else "plain"


def parse_row(row: Mapping[str, Any], row_id: object, defaults: Mapping[str, Any]) -> BatchRow:
    """Check a decoded row; `defaults` are sampling parameters that the row may override.

    Raises:
        RequestError: a field is missing, unknown or malformed.
    """
    if is_openai(row):
        return _parse_openai(row, row_id, defaults)
    fields = {name: value for name, value in row.items() if name != "id"}
    return _build(row_id, "plain", fields, defaults)


def _parse_openai(row: Mapping[str, Any], row_id: object, defaults: Mapping[str, Any]) -> BatchRow:
    if row.get("method", "POST") != "POST":
        raise RequestError(f"method {row['method']!r} is not POST", field="method")
    url = row.get("url")
    if not isinstance(url, str) or url not in _URLS:
        raise RequestError(f"url {url!r} is not one of {', '.join(_URLS)}", field="url")
    body = row.get("body")
    if not isinstance(body, dict):
        raise RequestError(f"body is a JSON object, not {type(body).__name__}", field="body")
    extra = sorted(set(row) - {"custom_id", "method", "url", "body"})
    if extra:
        raise RequestError(f"unknown fields beside body: {', '.join(extra)}", field=extra[0])
    fields = {k: v for k, v in body.items() if v is not None and k not in _IGNORED}
    _translate_openai(fields, chat=_URLS[url] == "openai.chat")
    model = body.get("model")
    return _build(
        row_id, _URLS[url], fields, defaults, model_name=model if isinstance(model, str) else None
    )


def _translate_openai(fields: dict[str, Any], *, chat: bool) -> None:
    """Rename an OpenAI body's fields, in place, to those of a plain row."""
    unsupported = {
        "stream": bool(fields.pop("stream", False)),
        "echo": bool(fields.pop("echo", False)),
        "suffix": bool(fields.pop("suffix", None)),
        "best_of": fields.pop("best_of", 1) not in (1, fields.get("n", 1)),
    }
    for name, given in unsupported.items():
        if given:
            raise UnsupportedSamplingError(
                f"{name} is not supported in a batch row; leave it out", field=name
            )
    if "response_format" in fields:
        form = _form_of(fields.pop("response_format"))
        if form is not None:
            fields["structured"] = form
    if "max_completion_tokens" in fields:
        fields["max_tokens"] = fields.pop("max_completion_tokens")
    if chat:
        _translate_chat(fields)


def _form_of(wanted: object) -> dict[str, Any] | None:
    """A response format as `SamplingParams.structured`."""
    match wanted:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"json_object": True}
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"json_schema": schema}
    raise UnsupportedSamplingError(
        f"response_format = {short_repr(wanted)}: its type is text, json_object, or json_schema "
        "with json_schema.schema; give other forms as `structured`",
        field="response_format",
    )


def _translate_chat(fields: dict[str, Any]) -> None:
    choice = fields.pop("tool_choice", "auto")
    if choice == "none":
        fields.pop("tools", None)
    elif choice != "auto":
        raise UnsupportedSamplingError(
            f"tool_choice {choice!r} is not supported in a batch row; allowed: 'auto', 'none'; "
            "where a recipe serves the model, give it others as chat_template_kwargs.tool_choice",
            field="tool_choice",
        )
    top_logprobs = fields.pop("top_logprobs", 0)
    wanted = fields.pop("logprobs", False)
    if not isinstance(wanted, bool):
        raise UnsupportedSamplingError(f"logprobs = {wanted!r}: true or false", field="logprobs")
    if wanted:
        fields["logprobs"] = top_logprobs


def _build(
    row_id: object,
    row_format: RowFormat,
    fields: dict[str, Any],
    defaults: Mapping[str, Any],
    *,
    model_name: str | None = None,
) -> BatchRow:
    messages = fields.pop("messages", None)
    prompts = [fields.pop(name) for name in ("prompt", "prompt_token_ids") if name in fields]
    if (messages is not None) + len(prompts) != 1 or (row_format == "openai.chat" and prompts):
        wanted = "messages" if row_format == "openai.chat" else "one of prompt and messages"
        raise RequestError(f"a row has exactly {wanted}", field="prompt")
    if messages is not None and not isinstance(messages, list):
        raise RequestError(f"messages is a list, not {type(messages).__name__}", field="messages")
    options = {name: fields.pop(name) for name in _CHAT_FIELDS if name in fields}
    if options and messages is None:
        raise RequestError(f"{next(iter(options))} needs messages", field=next(iter(options)))
    return BatchRow(
        row_id=row_id,
        format=row_format,
        params=parse_params({**defaults, **fields}),
        prompt=prompts[0] if prompts else None,
        messages=messages,
        chat_options=options,
        model_name=model_name,
    )
