"""The messages of a conversation, each with the fields that its role has.

Knows nothing of prompt formats. The one format fact kept here is which parts of a content are
image placeholders: `segments` fixes that when a message is built, so that no later text can
turn into a placeholder.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal, Self, TypeAlias

from ..arguments import check_bool, check_list, check_optional_str, check_str
from ..specials import SpecialToken
from .images import ImageSource
from .tools import ToolCall, ToolDefinition

Role: TypeAlias = Literal["system", "user", "assistant", "tool", "latest_reminder"]
Segment: TypeAlias = tuple[str, bool]
"""A stretch of content, and whether it is an image placeholder."""


class Message:
    """Base of the messages: a role and a content.

    On a role without a field, the field has a fixed value: `reasoning_content`, `tool_calls` and
    `tool_call_id` are None, `prefix` is False, `image_sources` is empty.
    """

    __slots__ = ("_content",)
    role: Role

    def __init__(self, content: str) -> None:
        if type(self) is Message:
            raise TypeError("cannot create 'Message' instances")
        self._content = check_str("content", content)

    @property
    def content(self) -> str:
        """The text, image placeholders included."""
        return self._content

    @property
    def reasoning_content(self) -> str | None:
        """The reasoning before an assistant's answer."""
        return None

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        """The calls of an assistant message."""
        return None

    @property
    def tool_call_id(self) -> str | None:
        """The call that a tool message answers."""
        return None

    @property
    def image_sources(self) -> list[ImageSource]:
        """The images of the message, in the order of their placeholders."""
        return []

    @property
    def prefix(self) -> bool:
        """Whether the model continues this assistant message instead of starting a turn."""
        return False

    @property
    def segments(self) -> Sequence[Segment]:
        """The content, split at its image placeholders; no segment is empty."""
        return [(self._content, False)] if self._content else []

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._content))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._content!r})"

    def _key(self) -> tuple[object, ...]:
        return (self._content,)


class _ImageMessage(Message):
    """A message whose content may hold image placeholders."""

    __slots__ = ("_image_sources", "_segments")

    def __init__(
        self, content: str, image_sources: Sequence[ImageSource] | None, image_token: str | None
    ) -> None:
        super().__init__(content)
        sources = [] if image_sources is None else image_sources
        self._image_sources = check_list("image_sources", sources, ImageSource)
        token = SpecialToken.Image.value
        if image_token is not None:
            token = check_str("image_token", image_token)
        if not token:
            raise ValueError("image_token must not be empty")
        self._segments = _split_placeholders(content, token, len(self._image_sources))

    @property
    def image_sources(self) -> list[ImageSource]:
        """The images of the message, in the order of their placeholders."""
        return list(self._image_sources)

    @property
    def segments(self) -> Sequence[Segment]:
        """The content, split at its image placeholders; no segment is empty."""
        return self._segments

    def with_segments(self, segments: Sequence[Segment]) -> Self:
        """Return the message with its placeholders where the segments have them."""
        message = copy.copy(self)
        message._content = "".join(text for text, _ in segments)
        message._segments = [segment for segment in segments if segment[0]]
        return message

    def _key(self) -> tuple[object, ...]:
        return (self._content, self._image_sources, self._segments)


class SystemMessage(_ImageMessage):
    """Instructions, and tool definitions that the model learns at this point (V4.1).

    The first occurrences of `image_token` in `content`, one per image source, are placeholders;
    later ones are text. Sources without a placeholder are kept.

    Raises:
        ValueError: `image_token` is empty.
    """

    __slots__ = ("_tools",)
    role: Role = "system"

    def __init__(
        self,
        content: str,
        image_sources: Sequence[ImageSource] | None = None,
        tools: Sequence[ToolDefinition] | None = None,
        *,
        image_token: str | None = None,
    ) -> None:
        super().__init__(content, image_sources, image_token)
        self._tools = None if tools is None else check_list("tools", tools, ToolDefinition)

    @property
    def tools(self) -> list[ToolDefinition] | None:
        """The definitions added here."""
        return None if self._tools is None else list(self._tools)

    def _key(self) -> tuple[object, ...]:
        return (*super()._key(), self._tools)


class UserMessage(_ImageMessage):
    """A user's message; see `SystemMessage` for image placeholders."""

    __slots__ = ()
    role: Role = "user"

    def __init__(
        self,
        content: str,
        image_sources: Sequence[ImageSource] | None = None,
        *,
        image_token: str | None = None,
    ) -> None:
        super().__init__(content, image_sources, image_token)


class AssistantMessage(Message):
    """An assistant's message. With `prefix`, the model continues it."""

    __slots__ = ("_prefix", "_reasoning_content", "_tool_calls")
    role: Role = "assistant"

    def __init__(
        self,
        content: str,
        reasoning_content: str | None = None,
        tool_calls: Sequence[ToolCall] | None = None,
        prefix: bool = False,
    ) -> None:
        super().__init__(content)
        self._reasoning_content = check_optional_str("reasoning_content", reasoning_content)
        self._tool_calls = (
            None if tool_calls is None else check_list("tool_calls", tool_calls, ToolCall)
        )
        self._prefix = check_bool("prefix", prefix)

    @property
    def reasoning_content(self) -> str | None:
        """The reasoning before the answer."""
        return self._reasoning_content

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        """The calls made in this message."""
        return None if self._tool_calls is None else list(self._tool_calls)

    @property
    def prefix(self) -> bool:
        """Whether the model continues this message."""
        return self._prefix

    def _key(self) -> tuple[object, ...]:
        return (self._content, self._reasoning_content, self._tool_calls, self._prefix)


class ToolMessage(_ImageMessage):
    """The result of a tool call; see `SystemMessage` for image placeholders."""

    __slots__ = ("_tool_call_id",)
    role: Role = "tool"

    def __init__(
        self,
        content: str,
        tool_call_id: str | None = None,
        image_sources: Sequence[ImageSource] | None = None,
        *,
        image_token: str | None = None,
    ) -> None:
        super().__init__(content, image_sources, image_token)
        self._tool_call_id = check_optional_str("tool_call_id", tool_call_id)

    @property
    def tool_call_id(self) -> str | None:
        """The call that this result answers."""
        return self._tool_call_id

    def _key(self) -> tuple[object, ...]:
        return (*super()._key(), self._tool_call_id)


class LatestReminderMessage(Message):
    """A reminder that carries additional instructions."""

    __slots__ = ()
    role: Role = "latest_reminder"


def _split_placeholders(content: str, token: str, count: int) -> list[Segment]:
    parts = content.split(token, count)
    segments: list[Segment] = []
    for index, part in enumerate(parts):
        if index:
            segments.append((token, True))
        if part:
            segments.append((part, False))
    return segments
