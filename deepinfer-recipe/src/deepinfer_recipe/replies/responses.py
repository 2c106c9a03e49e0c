"""Replies of the Responses protocol: numbered events, and the response they add up to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

from ..arguments import check_instance, check_str, check_uint
from ..jsontext import dumps_compact
from ..parsing.events import CallArguments, CallStart, TextDelta
from .generator import CallIds, Chunk, ChunkGenerator, Ending, FinishReason, Usage
from .responses_items import (
    CallItem,
    ClientTool,
    MessageItem,
    OutputItem,
    ReasoningItem,
    new_call_item,
)
from .responses_object import ResponsesEcho, ResponseState, response_object

_INCOMPLETE = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.CONTENT_FILTER: "content_filter",
}


class ResponsesStreamEvent(Chunk):
    """One event of a Responses stream."""

    __slots__ = ()


class ResponsesChunkGenerator(ChunkGenerator[ResponsesStreamEvent]):
    """Generates Responses events: items open one after the other, each closed before the next."""

    def __init__(
        self,
        id: str,
        model: str,
        *,
        thinking_mode: bool,
        client_tools: Mapping[str, ClientTool],
    ) -> None:
        self._id = check_str("id", id)
        self._model = check_str("model", model)
        self._client_tools = client_tools
        self._call_ids = CallIds(thinking_mode=thinking_mode)
        self._namespaces: dict[str, tuple[str, str]] = {}
        self._echo = ResponsesEcho()
        self._created = int(time.time())
        self._num_events = 0
        self._output: list[dict[str, Any]] = []
        self._item: OutputItem | None = None

    def with_namespace_tool_map(self, namespace_tool_map: dict[str, tuple[str, str]]) -> Self:
        """Consume this generator and return one that splits the names of namespaced tools.

        Raises:
            RuntimeError: the generator has been consumed.
        """
        generator = self.take()
        generator._namespaces = dict(namespace_tool_map)
        return generator

    def with_echo(self, echo: ResponsesEcho) -> Self:
        """Consume this generator and return one whose responses report request settings.

        Raises:
            RuntimeError: the generator has been consumed.
        """
        check_instance("echo", echo, ResponsesEcho)
        generator = self.take()
        generator._echo = echo
        return generator

    def start(self, usage: Usage, system_fingerprint: str | None) -> list[ResponsesStreamEvent]:
        """Return the events that announce the response."""
        return self._number(
            [
                {"type": f"response.{name}", "response": self._response()}
                for name in ("created", "in_progress")
            ]
        )

    def event(self, event: TextDelta | CallStart | CallArguments) -> list[ResponsesStreamEvent]:
        """Return the events of one parser event."""
        if isinstance(event, TextDelta):
            self._call_ids.see(event)
            kind = ReasoningItem if event.is_reasoning else MessageItem
            events: list[dict[str, Any]] = []
            if not isinstance(self._item, kind):
                events = self._open(kind(self._id, self._next_index()))
            assert isinstance(self._item, ReasoningItem | MessageItem)
            return self._number(events + self._item.add(event.text, event.logprobs))
        if isinstance(event, CallStart):
            item = new_call_item(
                self._id,
                self._next_index(),
                self._call_ids.new(event.index),
                event.name,
                namespaces=self._namespaces,
                client_tools=self._client_tools,
            )
            return self._number(self._open(item))
        assert isinstance(self._item, CallItem)
        return self._number(self._item.add(event.json_text))

    def finish(self, ending: Ending) -> list[ResponsesStreamEvent]:
        """Return the end of the last item and of the response."""
        incomplete = _INCOMPLETE.get(ending.reason)
        status = "incomplete" if incomplete else "completed"
        events = self._close(status)
        response = self._response(
            status=status,
            completed_at=int(time.time()),
            incomplete_reason=incomplete,
            usage=ending.usage,
        )
        return self._number([*events, {"type": f"response.{status}", "response": response}])

    def _next_index(self) -> int:
        return len(self._output) + (self._item is not None)

    def _open(self, item: OutputItem) -> list[dict[str, Any]]:
        if isinstance(self._item, MessageItem) and isinstance(item, CallItem):
            self._item.is_commentary = True
        events = self._close("completed")
        self._item = item
        return events + item.open()

    def _close(self, status: str) -> list[dict[str, Any]]:
        if self._item is None:
            return []
        events = self._item.close(status)
        self._output.append(self._item.value(status))
        self._item = None
        return events

    def _response(self, **state: Any) -> dict[str, Any]:
        output = list(self._output)
        return response_object(
            self._id,
            self._model,
            self._created,
            self._echo,
            ResponseState(output=output, **state),
        )

    def _number(self, events: list[dict[str, Any]]) -> list[ResponsesStreamEvent]:
        numbered = []
        for event in events:
            event["sequence_number"] = self._num_events
            self._num_events += 1
            numbered.append(ResponsesStreamEvent(event))
        return numbered


class ResponsesResponse:
    """A response that the events of a stream add up to."""

    def __init__(
        self, id: str, model: str, created: int, prompt_tokens: int, prompt_cache_hit_tokens: int
    ) -> None:
        check_uint("prompt_tokens", prompt_tokens)
        check_uint("prompt_cache_hit_tokens", prompt_cache_hit_tokens)
        self._data = response_object(
            check_str("id", id),
            check_str("model", model),
            check_uint("created", created, 64),
            ResponsesEcho(),
            ResponseState(),
        )
        self._texts: list[str] = []

    def accumulate(self, chunk: ResponsesStreamEvent) -> None:
        """Consume an event and apply it.

        Raises:
            RuntimeError: the event has been consumed.
        """
        data = check_instance("chunk", chunk, ResponsesStreamEvent).take()
        if "response" in data:
            self._data = data["response"]
            return
        output = self._data["output"]
        match data["type"].removeprefix("response."):
            case "output_item.added":
                output.append(data["item"])
                self._texts = []
            case "content_part.added":
                output[-1]["content"] = [data["part"]]
            case "output_item.done":
                output[data["output_index"]] = data["item"]
            case name if name.endswith(".delta"):
                self._texts.append(data["delta"])
                if data.get("logprobs"):
                    output[-1]["content"][0]["logprobs"] += data["logprobs"]

    def to_json(self) -> str:
        """Return the response as JSON text."""
        output = list(self._data["output"])
        if output and output[-1]["status"] == "in_progress":
            output[-1] = _with_text(output[-1], "".join(self._texts))
        return dumps_compact(self._data | {"output": output})

    @staticmethod
    def sse_event_name(chunk: ResponsesStreamEvent) -> str | None:
        """Return the name of the server-sent event: the type."""
        name: str = check_instance("chunk", chunk, ResponsesStreamEvent).data["type"]
        return name

    @staticmethod
    def sse_done_data() -> str | None:
        """Return None: this protocol has no closing data."""
        return None


def _with_text(item: dict[str, Any], text: str) -> dict[str, Any]:
    """Return an item that is still open with the text that has come so far."""
    match item["type"]:
        case "message" | "reasoning":
            return item | {"content": [part | {"text": text} for part in item["content"]]}
        case "function_call":
            return item | {"arguments": text}
        case "custom_tool_call":
            return item | {"input": text}
    return item
