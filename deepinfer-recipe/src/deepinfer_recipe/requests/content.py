"""Message content out of blocks: texts and images joined, with a placeholder per image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ..conversation import (
    ImageSource,
    Message,
    Segment,
    SystemMessage,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from ..specials import SpecialToken, SpecialTokens

Part: TypeAlias = str | ImageSource
SEPARATOR = "\n\n"


def join_texts(parts: Sequence[Part]) -> str:
    """Join the texts of parts that hold no image."""
    return SEPARATOR.join(part for part in parts if isinstance(part, str))


class ContentWriter:
    """Builds messages whose image placeholders have the spelling of the request's options."""

    def __init__(self, special_tokens: SpecialTokens) -> None:
        # An image needs a placeholder even where the token is spelled as nothing.
        self._token = special_tokens.token(SpecialToken.Image)

    def user(self, parts: Sequence[Part]) -> Message:
        """Return a user message."""
        segments, sources = self._segments(parts)
        return UserMessage("", sources).with_segments(segments)

    def system(
        self, parts: Sequence[Part], tools: Sequence[ToolDefinition] | None = None
    ) -> Message:
        """Return a system message."""
        segments, sources = self._segments(parts)
        return SystemMessage("", sources, tools).with_segments(segments)

    def tool(self, parts: Sequence[Part], tool_call_id: str | None) -> Message:
        """Return a tool result."""
        segments, sources = self._segments(parts)
        return ToolMessage("", tool_call_id, sources).with_segments(segments)

    def _segments(self, parts: Sequence[Part]) -> tuple[list[Segment], list[ImageSource]]:
        segments: list[Segment] = []
        sources: list[ImageSource] = []
        for index, part in enumerate(parts):
            if index:
                segments.append((SEPARATOR, False))
            if isinstance(part, str):
                segments.append((part, False))
            else:
                segments.append((self._token, True))
                sources.append(part)
        return segments, sources


def keep_known_tools(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[Message]:
    """Leave only tools that the request keeps in messages that add some."""
    names = {tool.name for tool in tools}
    kept: list[Message] = []
    for message in messages:
        if isinstance(message, SystemMessage) and message.tools:
            known = [tool for tool in message.tools if tool.name in names]
            if known or message.content:
                settled = SystemMessage("", message.image_sources, known)
                kept.append(settled.with_segments(message.segments))
        else:
            kept.append(message)
    return kept
