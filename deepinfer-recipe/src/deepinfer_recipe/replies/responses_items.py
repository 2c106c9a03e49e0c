"""The output items of the Responses protocol, each with the events that tell of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from ..jsontext import JsonTextError, loads
from ..streaming.logprobs import TokenLogprob
from .custom_input import CustomInput

ClientTool: TypeAlias = Literal["custom", "tool_search"]
"""A tool whose calls are reported as items of their own kind."""


class OutputItem(ABC):
    """One item of the output, open until `close`."""

    prefix: str

    def __init__(self, response_id: str, index: int) -> None:
        self.id = f"{self.prefix}_{response_id}_{index}"
        self.index = index

    @abstractmethod
    def value(self, status: str) -> dict[str, Any]:
        """Return the item in the given state."""

    def open(self) -> list[dict[str, Any]]:
        """Return the events that begin the item."""
        return [self._item_event("added", "in_progress")]

    def close(self, status: str) -> list[dict[str, Any]]:
        """Return the events that end the item."""
        return [self._item_event("done", status)]

    def _item_event(self, name: str, status: str) -> dict[str, Any]:
        return {
            "type": f"response.output_item.{name}",
            "item": self.value(status),
            "output_index": self.index,
        }

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index}


class _TextItem(OutputItem):
    """An item with one part of text."""

    part_type: str

    def __init__(self, response_id: str, index: int) -> None:
        super().__init__(response_id, index)
        self._is_open = False
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def open(self) -> list[dict[str, Any]]:
        """Return the events that begin the item and its part."""
        events = super().open()
        self._is_open = True
        return [*events, self._part_event("added", "")]

    def add(self, text: str, logprobs: list[TokenLogprob] | None) -> list[dict[str, Any]]:
        """Append text and return its event."""
        self._texts.append(text)
        self._logprobs += logprobs or []
        return [self._text_event("delta", {"delta": text}, logprobs or [])]

    def close(self, status: str) -> list[dict[str, Any]]:
        """Return the events that end the part and the item."""
        text = "".join(self._texts)
        done = self._text_event("done", {"text": text}, self._logprobs)
        return [done, self._part_event("done", text), *super().close(status)]

    def _content(self) -> list[dict[str, Any]]:
        return [self._part("".join(self._texts))] if self._is_open else []

    def _part_event(self, name: str, text: str) -> dict[str, Any]:
        return {
            "type": f"response.content_part.{name}",
            "content_index": 0,
            **self._place(),
            "part": self._part(text),
        }

    def _text_event(
        self, name: str, text: dict[str, str], logprobs: list[TokenLogprob]
    ) -> dict[str, Any]:
        event = {
            "type": f"response.{self.part_type}.{name}",
            "content_index": 0,
            **text,
            **self._place(),
        }
        if self.part_type == "output_text":
            event["logprobs"] = logprobs
        return event

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": self.part_type, "text": text}


class ReasoningItem(_TextItem):
    """The reasoning before the answer."""

    prefix = "rs"
    part_type = "reasoning_text"

    def __init__(self, response_id: str, index: int) -> None:
        super().__init__(response_id, index)
        self._encrypted = f"{response_id}-{index}"

    def value(self, status: str) -> dict[str, Any]:
        """Return the item in the given state."""
        return {
            "type": "reasoning",
            "id": self.id,
            "status": status,
            "content": self._content(),
            "summary": [],
            "encrypted_content": self._encrypted,
        }


class MessageItem(_TextItem):
    """The text of the answer; commentary if calls follow it."""

    prefix = "msg"
    part_type = "output_text"
    is_commentary = False

    def value(self, status: str) -> dict[str, Any]:
        """Return the item in the given state."""
        return {
            "type": "message",
            "id": self.id,
            "status": status,
            "role": "assistant",
            "phase": "commentary" if self.is_commentary else "final_answer",
            "content": self._content(),
        }

    def _part(self, text: str) -> dict[str, Any]:
        logprobs = self._logprobs if text else []
        return {"type": self.part_type, "annotations": [], "logprobs": list(logprobs), "text": text}


class CallItem(OutputItem):
    """A tool call; the subclasses differ in how arguments are shown."""

    kind: str

    def __init__(self, response_id: str, index: int, call_id: str, name: str) -> None:
        super().__init__(response_id, index)
        self._call_id = call_id
        self._name = name
        self._texts: list[str] = []

    def value(self, status: str) -> dict[str, Any]:
        """Return the item in the given state."""
        head = {
            "type": self.kind, "id": self.id, "status": status, "call_id": self._call_id,
        }  # fmt: skip
        return head | self._fields("".join(self._texts))

    @abstractmethod
    def add(self, json_text: str) -> list[dict[str, Any]]:
        """Append JSON text of the arguments and return its events."""

    @abstractmethod
    def _fields(self, text: str) -> dict[str, Any]:
        """Return what follows the call id, for the arguments so far."""


class FunctionCallItem(CallItem):
    """A call of a function, which may belong to a namespace."""

    prefix = "fc"
    kind = "function_call"

    def __init__(
        self,
        response_id: str,
        index: int,
        call_id: str,
        name: str,
        namespace: tuple[str, str] | None,
    ) -> None:
        super().__init__(response_id, index, call_id, name)
        self._namespace: dict[str, str] = {}
        if namespace is not None:
            self._namespace = {"namespace": namespace[0]}
            self._name = namespace[1]

    def add(self, json_text: str) -> list[dict[str, Any]]:
        """Append JSON text of the arguments and return its event."""
        self._texts.append(json_text)
        name = "response.function_call_arguments.delta"
        return [{"type": name, "delta": json_text, **self._place()}]

    def close(self, status: str) -> list[dict[str, Any]]:
        """Return the events that end the arguments and the item."""
        done = {
            "type": "response.function_call_arguments.done",
            "arguments": "".join(self._texts),
            **self._place(),
        }
        return [done, *super().close(status)]

    def _fields(self, text: str) -> dict[str, Any]:
        return {"name": self._name, **self._namespace, "arguments": text}


class CustomCallItem(CallItem):
    """A call of a custom tool, whose input is free text."""

    prefix = "ctc"
    kind = "custom_tool_call"

    def __init__(self, response_id: str, index: int, call_id: str, name: str) -> None:
        super().__init__(response_id, index, call_id, name)
        self._input = CustomInput()

    def add(self, json_text: str) -> list[dict[str, Any]]:
        """Append JSON text of the arguments and return the event of new input."""
        return self._delta(self._input.feed(json_text))

    def close(self, status: str) -> list[dict[str, Any]]:
        """Return the events that end the input and the item."""
        events = self._delta(self._input.finish())
        done = {
            "type": "response.custom_tool_call_input.done",
            "input": "".join(self._texts),
            **self._place(),
        }
        return [*events, done, *super().close(status)]

    def _delta(self, text: str | None) -> list[dict[str, Any]]:
        if text is None:
            return []
        self._texts.append(text)
        name = "response.custom_tool_call_input.delta"
        return [{"type": name, "delta": text, **self._place()}]

    def _fields(self, text: str) -> dict[str, Any]:
        return {"name": self._name, "input": text}


class ToolSearchCallItem(CallItem):
    """A search for tools, which the client carries out."""

    prefix = "tsc"
    kind = "tool_search_call"

    def __init__(self, response_id: str, index: int, call_id: str, name: str) -> None:
        super().__init__(response_id, index, call_id, name)
        self._arguments: Any = {}

    def add(self, json_text: str) -> list[dict[str, Any]]:
        """Append JSON text of the arguments; there is no event for it."""
        self._texts.append(json_text)
        return []

    def value(self, status: str) -> dict[str, Any]:
        """Return the item; without whole arguments it is incomplete."""
        self._arguments = {}
        if status == "completed":
            try:
                self._arguments = loads("".join(self._texts))
            except JsonTextError:
                status = "incomplete"
        return super().value(status)

    def _fields(self, text: str) -> dict[str, Any]:
        return {"execution": "client", "arguments": self._arguments}


def new_call_item(
    response_id: str,
    index: int,
    call_id: str,
    name: str,
    *,
    namespaces: dict[str, tuple[str, str]],
    client_tools: Mapping[str, ClientTool],
) -> CallItem:
    """Return the item for a call, by the name that is called."""
    kind = client_tools.get(name)
    if kind == "custom":
        return CustomCallItem(response_id, index, call_id, name)
    if kind == "tool_search":
        return ToolSearchCallItem(response_id, index, call_id, name)
    return FunctionCallItem(response_id, index, call_id, name, namespaces.get(name))
