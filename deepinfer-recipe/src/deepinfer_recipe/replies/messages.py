"""Replies of the Anthropic Messages protocol: events, and the message they add up to."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

from ..arguments import check_bool, check_instance, check_str, check_uint
from ..jsontext import JsonTextError, dumps_compact, loads
from ..parsing.events import CallArguments, CallStart, TextDelta
from .generator import CallIds, Chunk, ChunkGenerator, Ending, FinishReason, Usage

_STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTENT_FILTER: "refusal",
    FinishReason.TOOL_CALLS: "tool_use",
}
_DELTAS = {"text": "text_delta", "thinking": "thinking_delta"}


class MessagesStreamEvent(Chunk):
    """One event of a Messages stream."""

    __slots__ = ()


class MessagesChunkGenerator(ChunkGenerator[MessagesStreamEvent]):
    """Generates Messages events; the signature of thinking blocks is the id of the response."""

    def __init__(self, id: str, model: str, thinking_mode: bool) -> None:
        self._id = check_str("id", id)
        self._model = check_str("model", model)
        self._thinking_mode = check_bool("thinking_mode", thinking_mode)
        self._signature = id
        self._call_ids = CallIds(thinking_mode=thinking_mode)
        self._num_blocks = 0
        self._open_block: str | None = None

    def with_signature(self, signature: str) -> Self:
        """Consume this generator and return one that signs thinking blocks with `signature`.

        Raises:
            RuntimeError: the generator has been consumed.
        """
        check_str("signature", signature)
        generator = self.take()
        generator._signature = signature
        return generator

    def start(self, usage: Usage, system_fingerprint: str | None) -> list[MessagesStreamEvent]:
        """Return the start of the message and, in thinking mode, of its first block."""
        message = _message(self._id, self._model, _usage(usage))
        events = [MessagesStreamEvent({"type": "message_start", "message": message})]
        if self._thinking_mode:
            events += self._open({"type": "thinking", "thinking": "", "signature": ""})
        return events

    def event(self, event: TextDelta | CallStart | CallArguments) -> list[MessagesStreamEvent]:
        """Return the events of one parser event."""
        if isinstance(event, CallStart):
            block = {
                "type": "tool_use",
                "id": self._call_ids.new(event.index),
                "name": event.name,
                "input": {},
            }
            return self._close() + self._open(block)
        if isinstance(event, CallArguments):
            return [self._delta({"type": "input_json_delta", "partial_json": event.json_text})]
        self._call_ids.see(event)
        kind = "thinking" if event.is_reasoning else "text"
        events: list[MessagesStreamEvent] = []
        if self._open_block != kind:
            block = {"type": kind, kind: ""}
            if event.is_reasoning:
                block["signature"] = ""
            events = self._close() + self._open(block)
        return [*events, self._delta({"type": _DELTAS[kind], kind: event.text})]

    def finish(self, ending: Ending) -> list[MessagesStreamEvent]:
        """Return the end of the last block and of the message."""
        reason = _STOP_REASONS[ending.reason]
        if ending.stop_sequence is not None:
            reason = "stop_sequence"
        delta = {"stop_reason": reason, "stop_sequence": ending.stop_sequence}
        data = {"type": "message_delta", "delta": delta, "usage": _usage(ending.usage)}
        end = [MessagesStreamEvent(data), MessagesStreamEvent({"type": "message_stop"})]
        return self._close() + end

    def _open(self, block: dict[str, Any]) -> list[MessagesStreamEvent]:
        index = self._num_blocks
        self._num_blocks += 1
        self._open_block = block["type"]
        start = {"type": "content_block_start", "index": index, "content_block": block}
        events = [MessagesStreamEvent(start)]
        if index == 0:
            events.append(MessagesStreamEvent({"type": "ping"}))
        return events

    def _close(self) -> list[MessagesStreamEvent]:
        if self._open_block is None:
            return []
        events = []
        if self._open_block == "thinking":
            signature = {"type": "signature_delta", "signature": self._signature}
            events.append(self._delta(signature))
        self._open_block = None
        stop = {"type": "content_block_stop", "index": self._num_blocks - 1}
        return [*events, MessagesStreamEvent(stop)]

    def _delta(self, delta: dict[str, Any]) -> MessagesStreamEvent:
        index = self._num_blocks - 1
        return MessagesStreamEvent({"type": "content_block_delta", "index": index, "delta": delta})


class MessagesResponse:
    """A message that the events of a stream add up to."""

    def __init__(
        self, id: str, model: str, created: int, prompt_tokens: int, prompt_cache_hit_tokens: int
    ) -> None:
        check_uint("created", created, 64)
        prompt = check_uint("prompt_tokens", prompt_tokens)
        hit = check_uint("prompt_cache_hit_tokens", prompt_cache_hit_tokens)
        usage = _usage(Usage(prompt, hit, 0, None))
        self._data = _message(check_str("id", id), check_str("model", model), usage)
        self._texts: list[list[str]] = []

    def accumulate(self, chunk: MessagesStreamEvent) -> None:
        """Consume an event and apply it.

        Raises:
            RuntimeError: the event has been consumed.
        """
        data = check_instance("chunk", chunk, MessagesStreamEvent).take()
        match data["type"]:
            case "message_start":
                self._data = data["message"]
            case "content_block_start":
                self._data["content"].append(dict(data["content_block"]))
                self._texts.append([])
            case "content_block_delta":
                self._add_delta(data["index"], data["delta"])
            case "content_block_stop":
                self._end_block(data["index"])
            case "message_delta":
                self._data |= data["delta"]
                self._data["usage"] = data["usage"]

    def to_json(self) -> str:
        """Return the message as JSON text."""
        blocks = zip(self._data["content"], self._texts, strict=True)
        content = [
            block if block["type"] == "tool_use" else block | {block["type"]: "".join(texts)}
            for block, texts in blocks
        ]
        return dumps_compact(self._data | {"content": content})

    @staticmethod
    def sse_event_name(chunk: MessagesStreamEvent) -> str | None:
        """Return the name of the server-sent event: the type."""
        name: str = check_instance("chunk", chunk, MessagesStreamEvent).data["type"]
        return name

    @staticmethod
    def sse_done_data() -> str | None:
        """Return None: this protocol has no closing data."""
        return None

    def _add_delta(self, index: int, delta: dict[str, Any]) -> None:
        match delta["type"]:
            case "signature_delta":
                self._data["content"][index]["signature"] = delta["signature"]
            case "input_json_delta":
                self._texts[index].append(delta["partial_json"])
            case kind:
                self._texts[index].append(delta[kind.removesuffix("_delta")])

    def _end_block(self, index: int) -> None:
        """Parse the input of a tool use; input that is no JSON stays empty."""
        block = self._data["content"][index]
        if block["type"] == "tool_use":
            with suppress(JsonTextError):
                block["input"] = loads("".join(self._texts[index]))


def _message(id: str, model: str, usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.cache_miss_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cache_hit_tokens,
        "output_tokens": usage.completion_tokens,
        "service_tier": "standard",
    }
