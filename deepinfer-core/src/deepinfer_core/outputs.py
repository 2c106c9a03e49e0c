"""What a person gets back: text, ids, reasons, and the numbers about them.

Of a chat that a recipe encoded, also what the text says: reasoning, answer and tool calls, under
the names of the Chat Completions protocol. Elsewhere the answer is the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from deepinfer_core.errors import RequestError
from deepinfer_core.request import FinishReason
from deepinfer_core.scheduling.plan import TokenLogprobs
from deepinfer_core.speculative.stats import DraftCounts


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for."""

    id: str
    """By which the message with the result names the call, as `tool_call_id`."""
    name: str
    arguments: str
    """JSON text, as the model wrote it; unfinished if the answer is."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What one step added to one tool call."""

    index: int
    """Of the call in its answer, from 0."""
    id: str | None = None
    """Set, like `name`, where the call begins, and only there."""
    name: str | None = None
    arguments: str = ""
    """A piece of the JSON text."""


@dataclass(slots=True)
class CompletionOutput:
    """One sample. `token_ids`, `text` and `logprobs` end at the same point."""

    index: int
    text: str
    """All that the model wrote, reasoning and markup included."""
    token_ids: list[int]
    seed: int
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; None for end-of-sequence and length."""
    logprobs: list[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None
    is_parsed: bool = False
    """A recipe read the ids; if not, `content` is `text`."""
    content: str = ""
    """The answer."""
    reasoning_content: str = ""
    """What the model thought before it answered."""
    tool_calls: list[ToolCall] = field(default_factory=list)

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message that continues the conversation."""
        return make_message(self.content, self.reasoning_content, self.tool_calls)


@dataclass(slots=True, kw_only=True)
class RequestMetrics(DraftCounts):
    """Times in seconds, counts in tokens; those of drafts are sums over the samples."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_replay_tokens: int = 0
    """Cached tokens that were computed again, of all samples and after each preemption; where
    there are any (`bounded_replay`), the answer is approximate."""
    num_output_tokens: int = 0
    num_preemptions: int = 0
    ttft_s: float | None = None
    latency_s: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """The result of one prompt. Either `error` is set or every output has a finish reason."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] | None = None
    """One for each prompt token but the first."""
    error: RequestError | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)

    @property
    def text(self) -> str:
        """Text of the first sample; empty when the request failed."""
        return self.outputs[0].text if self.outputs else ""


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one step added to one sample of a streamed request."""

    request_id: str
    index: int
    text: str
    """New text; never half a character, never a part of a stop string."""
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: RequestError | None = None
    content: str = ""
    """New text of the answer; `text` itself where no recipe reads the ids."""
    reasoning_content: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)


class ReplyPart(Protocol):
    """The fields of a delta that make up the answer."""

    @property
    def content(self) -> str: ...

    @property
    def reasoning_content(self) -> str: ...

    @property
    def tool_calls(self) -> Sequence[ToolCallDelta]: ...


class Reply:
    """One answer, joined from the deltas of a stream. Of several samples, each needs its own.

    reply = Reply()
    async for delta in llm.agenerate(messages):
        reply.add(delta)
    messages.append(reply.message)
    """

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []

    def add(self, delta: ReplyPart) -> None:
        """Add what the next delta holds."""
        self._content.append(delta.content)
        self._reasoning.append(delta.reasoning_content)
        for part in delta.tool_calls:
            if part.id is not None:
                self._calls.append((part.id, part.name or "", []))
            self._calls[part.index][2].append(part.arguments)

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning_content(self) -> str:
        return "".join(self._reasoning)

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [ToolCall(id, name, "".join(parts)) for id, name, parts in self._calls]

    @property
    def message(self) -> dict[str, Any]:
        """As `CompletionOutput.message`."""
        return make_message(self.content, self.reasoning_content, self.tool_calls)


def make_message(
    content: str, reasoning_content: str, tool_calls: Sequence[ToolCall]
) -> dict[str, Any]:
    """An answer as a message of the Chat Completions protocol; what is empty is left out."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning_content:
        message["reasoning_content"] = reasoning_content
    if tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in tool_calls
        ]
    return message
