"""What an inference backend reports: one chunk per update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from ..arguments import cannot_cast, check_instance, check_optional_str, check_str, check_uint

ChunkKind: TypeAlias = Literal["ready", "text", "tokens", "finish"]
RawLogprob: TypeAlias = tuple[float, Sequence[tuple[int, float]]]
"""Log probability of a token, and (id, log probability) of the most likely ones."""


class InferenceFinishReason(Enum):
    """Why the backend stopped; the parser decides what the protocols report."""

    Stop = "Stop"
    Length = "Length"
    ContentFilter = "ContentFilter"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptUsage:
    """Tokens of the prompt, and how many of them came from a cache."""

    prompt_tokens: int = 0
    prompt_cache_hit_tokens: int = 0

    def __post_init__(self) -> None:
        check_uint("prompt_tokens", self.prompt_tokens)
        check_uint("prompt_cache_hit_tokens", self.prompt_cache_hit_tokens)


@dataclass(frozen=True, slots=True)
class InferenceChunk:
    """One update of the backend. Built with `ready`, `text`, `tokens` or `finish`."""

    kind: ChunkKind
    content: str | None = None
    token_ids: list[int] | None = None
    finish_reason: InferenceFinishReason | None = None
    prompt_usage: PromptUsage | None = None
    token_count: int | None = None
    """Tokens that the content of a text chunk accounts for."""
    system_fingerprint: str | None = None
    logprobs: list[RawLogprob] | None = None

    @staticmethod
    def ready(
        *, prompt_usage: PromptUsage | None = None, system_fingerprint: str | None = None
    ) -> InferenceChunk:
        """The prompt was accepted. Counts only as the first chunk of a stream."""
        if prompt_usage is not None:
            check_instance("prompt_usage", prompt_usage, PromptUsage)
        fingerprint = check_optional_str("system_fingerprint", system_fingerprint)
        return InferenceChunk("ready", prompt_usage=prompt_usage, system_fingerprint=fingerprint)

    @staticmethod
    def text(content: str, token_count: int = 0) -> InferenceChunk:
        """More output as text, and the number of tokens it accounts for."""
        count = check_uint("token_count", token_count)
        return InferenceChunk("text", content=check_str("content", content), token_count=count)

    @staticmethod
    def tokens(
        token_ids: Sequence[int], logprobs: Sequence[RawLogprob] | None = None
    ) -> InferenceChunk:
        """More output as token ids, with one entry of `logprobs` per id if any."""
        if isinstance(token_ids, str):
            raise TypeError(f"argument 'token_ids': {cannot_cast(token_ids, 'Sequence')}")
        ids = [check_uint("token_ids", token_id) for token_id in token_ids]
        return InferenceChunk(
            "tokens", token_ids=ids, logprobs=None if logprobs is None else list(logprobs)
        )

    @staticmethod
    def finish(finish_reason: InferenceFinishReason) -> InferenceChunk:
        """The output is complete."""
        reason = check_instance("finish_reason", finish_reason, InferenceFinishReason)
        return InferenceChunk("finish", finish_reason=reason)
