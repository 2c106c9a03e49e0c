"""Replies of the Chat Completions protocol: chunks, and the response they add up to."""

from __future__ import annotations

import time
from typing import Any

from ..arguments import check_instance, check_str, check_uint
from ..jsontext import dumps_compact
from ..parsing.events import CallArguments, CallStart, TextDelta
from .generator import CallIds, Chunk, ChunkGenerator, Ending, Usage


class ChatCompletionChunk(Chunk):
    """One chunk of a Chat Completions stream."""

    __slots__ = ()


class ChatCompletionChunkGenerator(ChunkGenerator[ChatCompletionChunk]):
    """Generates Chat Completions chunks."""

    def __init__(
        self,
        id: str,
        model: str,
        *,
        thinking_mode: bool,
        starts_in_reasoning: bool,
        shows_null_usage: bool,
    ) -> None:
        self._id = check_str("id", id)
        self._model = check_str("model", model)
        self._thinking_mode = thinking_mode
        self._starts_in_reasoning = starts_in_reasoning
        self._shows_null_usage = shows_null_usage
        self._created = int(time.time())
        self._fingerprint: str | None = None
        self._call_ids = CallIds(thinking_mode=thinking_mode)
        self._call_index = 0

    def start(self, usage: Usage, system_fingerprint: str | None) -> list[ChatCompletionChunk]:
        """Return the chunk that names the role."""
        self._fingerprint = system_fingerprint
        delta: dict[str, Any] = {"role": "assistant"}
        if self._starts_in_reasoning:
            return [self._chunk(delta | {"content": None, "reasoning_content": ""})]
        return [self._chunk(delta | self._content(""))]

    def event(self, event: TextDelta | CallStart | CallArguments) -> list[ChatCompletionChunk]:
        """Return the chunk of one parser event."""
        if isinstance(event, TextDelta):
            self._call_ids.see(event)
            if event.is_reasoning:
                delta = {"content": None, "reasoning_content": event.text}
            else:
                delta = self._content(event.text)
            logprobs = None
            if event.logprobs is not None:
                field = "reasoning_content" if event.is_reasoning else "content"
                logprobs = {field: event.logprobs}
            return [self._chunk(delta, logprobs=logprobs)]
        if isinstance(event, CallStart):
            self._call_index = event.index
            call: dict[str, Any] = {
                "index": event.index,
                "id": self._call_ids.new(event.index),
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
        else:
            call = {"index": self._call_index, "function": {"arguments": event.json_text}}
        return [self._chunk({"tool_calls": [call]})]

    def finish(self, ending: Ending) -> list[ChatCompletionChunk]:
        """Return the chunk with finish reason and usage."""
        chunk = self._chunk(self._content(""), finish_reason=ending.reason.value)
        chunk.data["usage"] = _usage(ending.usage, thinking_mode=self._thinking_mode)
        return [chunk]

    def _content(self, text: str) -> dict[str, Any]:
        if self._thinking_mode:
            return {"content": text, "reasoning_content": None}
        return {"content": text}

    def _chunk(
        self,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> ChatCompletionChunk:
        choice = {
            "index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason,
        }  # fmt: skip
        data = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "system_fingerprint": self._fingerprint,
            "choices": [choice],
        }
        if self._shows_null_usage:
            data["usage"] = None
        return ChatCompletionChunk(data)


class ChatCompletionResponse:
    """A Chat Completions response that chunks add up to."""

    def __init__(
        self, id: str, model: str, created: int, prompt_tokens: int, prompt_cache_hit_tokens: int
    ) -> None:
        check_uint("prompt_tokens", prompt_tokens)
        check_uint("prompt_cache_hit_tokens", prompt_cache_hit_tokens)
        self._data: dict[str, Any] = {
            "id": check_str("id", id),
            "object": "chat.completion",
            "created": check_uint("created", created, 64),
            "model": check_str("model", model),
            "choices": [],
            "system_fingerprint": None,
        }
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        self._call_texts: list[list[str]] = []

    def accumulate(self, chunk: ChatCompletionChunk) -> None:
        """Consume a chunk and add its delta.

        Raises:
            RuntimeError: the chunk has been consumed.
        """
        data = check_instance("chunk", chunk, ChatCompletionChunk).take()
        if data.get("usage") is not None:
            self._data["usage"] = data["usage"]
        if data["system_fingerprint"] is not None:
            self._data["system_fingerprint"] = data["system_fingerprint"]
        for choice in data["choices"]:
            self._add_choice(choice)

    def to_json(self) -> str:
        """Return the response as JSON text."""
        data = dict(self._data)
        fingerprint = data.pop("system_fingerprint")
        usage = {"usage": data.pop("usage")} if "usage" in data else {}
        data["choices"] = [self._choice(choice) for choice in data["choices"]]
        return dumps_compact(data | usage | {"system_fingerprint": fingerprint})

    @staticmethod
    def sse_event_name(chunk: ChatCompletionChunk) -> str | None:
        """Return None: the events of this protocol are unnamed."""
        _ = check_instance("chunk", chunk, ChatCompletionChunk).data
        return None

    @staticmethod
    def sse_done_data() -> str | None:
        """Return the data of the last server-sent event."""
        return "[DONE]"

    def _add_choice(self, choice: dict[str, Any]) -> None:
        if not self._data["choices"]:
            message = {"role": "assistant", "content": None}
            self._data["choices"].append(
                {"index": 0, "message": message, "logprobs": None, "finish_reason": None}
            )
        total, delta = self._data["choices"][0], choice["delta"]
        for name, texts in self._texts.items():
            if delta.get(name) is not None:
                total["message"][name] = ""  # the texts are joined when shown
                texts.append(delta[name])
        for call in delta.get("tool_calls", ()):
            self._add_call(total["message"], call)
        for name, entries in (choice["logprobs"] or {}).items():
            if total["logprobs"] is None:
                total["logprobs"] = {}
            total["logprobs"].setdefault(name, []).extend(entries)
        if choice["finish_reason"] is not None:
            total["finish_reason"] = choice["finish_reason"]

    def _add_call(self, message: dict[str, Any], call: dict[str, Any]) -> None:
        if "id" in call:
            message.setdefault("tool_calls", []).append(call)
            self._call_texts.append([])
        self._call_texts[call["index"]].append(call["function"]["arguments"])

    def _choice(self, choice: dict[str, Any]) -> dict[str, Any]:
        message = dict(choice["message"])
        for name, texts in self._texts.items():
            if message.get(name) is not None:
                message[name] = "".join(texts)
        if "tool_calls" in message:
            message["tool_calls"] = [
                call | {"function": call["function"] | {"arguments": "".join(texts)}}
                for call, texts in zip(message["tool_calls"], self._call_texts, strict=True)
            ]
        return choice | {"message": message}


def _usage(usage: Usage, *, thinking_mode: bool) -> dict[str, Any]:
    reasoning: dict[str, Any] = {}
    if thinking_mode and usage.reasoning_tokens is not None:
        reasoning = {"completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens}}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_hit_tokens},
        **reasoning,
        "prompt_cache_hit_tokens": usage.cache_hit_tokens,
        "prompt_cache_miss_tokens": usage.cache_miss_tokens,
    }
