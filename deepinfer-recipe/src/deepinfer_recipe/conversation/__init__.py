"""Conversations as plain data: what a protocol request becomes and a prompt is made from."""

from .conversation import Conversation, ReasoningEffort, ResponseFormat, ToolChoice
from .images import (
    BytesImageSource,
    DataUrlImageSource,
    ImageDetail,
    ImageSource,
    ImageSourceKind,
    UrlImageSource,
)
from .messages import (
    AssistantMessage,
    LatestReminderMessage,
    Message,
    Role,
    Segment,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from .tools import ToolCall, ToolDefinition

__all__ = [
    "AssistantMessage",
    "BytesImageSource",
    "Conversation",
    "DataUrlImageSource",
    "ImageDetail",
    "ImageSource",
    "ImageSourceKind",
    "LatestReminderMessage",
    "Message",
    "ReasoningEffort",
    "ResponseFormat",
    "Role",
    "Segment",
    "SystemMessage",
    "ToolCall",
    "ToolChoice",
    "ToolDefinition",
    "ToolMessage",
    "UrlImageSource",
    "UserMessage",
]
