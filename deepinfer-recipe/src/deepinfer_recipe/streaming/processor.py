"""The stream processor: backend chunks in, protocol events out.

Joins decoder, parser and the generator of one protocol, counts tokens, and keeps the life cycle:
open, finished (a finish chunk, a stop sequence or `finish`), closed (`close` or an error).
"""

from __future__ import annotations

from typing import Any

from ..arguments import cannot_cast, check_instance
from ..parsing import OutputParser, ParserEvent, ParsingOptions, Piece, StopMatched, TextDelta
from ..replies.generator import Chunk, ChunkGenerator, Ending, FinishReason, Usage
from ..tokenizer import Tokenizer
from .chunks import InferenceChunk, InferenceFinishReason, PromptUsage, RawLogprob
from .decoding import TokenDecoder
from .logprobs import TokenLogprob, logprob_entry

_REASONS = {
    InferenceFinishReason.Stop: FinishReason.STOP,
    InferenceFinishReason.Length: FinishReason.LENGTH,
    InferenceFinishReason.ContentFilter: FinishReason.CONTENT_FILTER,
}


class StreamProcessor:
    """Turns the chunks of one answer into the events of one protocol.

    Consumes the generator. The tokenizer decodes `tokens` chunks and counts reasoning tokens.

    Raises:
        RuntimeError: the generator has been consumed.
    """

    def __init__(
        self,
        generator: ChunkGenerator[Any],
        options: ParsingOptions,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        check_instance("options", options, ParsingOptions)
        if tokenizer is not None:
            check_instance("tokenizer", tokenizer, Tokenizer)
        if not isinstance(generator, ChunkGenerator):
            raise TypeError(f"argument 'generator': {cannot_cast(generator, 'ChunkGenerator')}")
        self._generator = generator.take()
        self._parser = OutputParser(options)
        self._decoder = TokenDecoder(tokenizer) if tokenizer is not None else None
        self._tokenizer = tokenizer
        counts_reasoning = tokenizer is not None and options.thinking_initial_stage is not None
        self._reasoning: list[str] | None = [] if counts_reasoning else None
        self._prompt_usage = PromptUsage()
        self._num_tokens = 0
        self._stop_sequence: str | None = None
        self._is_open = False
        self._is_finished = False
        self._is_closed = False

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and the processor not closed."""
        return self._is_finished and not self._is_closed

    def push(self, chunk: InferenceChunk) -> list[Chunk]:
        """Process one chunk.

        Raises:
            RuntimeError: the processor has finished or is closed, or the chunk is in error (which
                closes the processor).
        """
        check_instance("chunk", chunk, InferenceChunk)
        self._require_open()
        if self._is_finished:
            raise RuntimeError("stream processor has finished")
        match chunk.kind:
            case "ready":
                return self._start(chunk.prompt_usage, chunk.system_fingerprint)
            case "text":
                return self._take([Piece(chunk.content or "", num_tokens=chunk.token_count or 0)])
            case "tokens":
                return self._take(self._decode(chunk))
        chunks = self._start(None, None) + self._parse_rest()
        reason = _REASONS[chunk.finish_reason or InferenceFinishReason.Stop]
        if reason is FinishReason.STOP and self._parser.num_calls:
            reason = FinishReason.TOOL_CALLS
        return chunks + self._end(reason)

    def finish(self) -> list[Chunk]:
        """Complete the answer without a finish chunk; nothing is left to say after completion.

        Raises:
            RuntimeError: the processor is closed.
        """
        self._require_open()
        if self._is_finished:
            return []
        return self._start(None, None) + self._parse_rest() + self._end(FinishReason.STOP)

    def close(self) -> None:
        """Drop the answer without completing it."""
        self._is_closed = True

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("stream processor is closed")

    def _start(self, usage: PromptUsage | None, fingerprint: str | None) -> list[Chunk]:
        if self._is_open:
            return []
        self._is_open = True
        self._prompt_usage = usage or PromptUsage()
        return self._generator.start(self._usage(), fingerprint)

    def _decode(self, chunk: InferenceChunk) -> list[Piece]:
        ids, logprobs = chunk.token_ids or [], chunk.logprobs
        if self._decoder is None or self._tokenizer is None:
            self._is_closed = True
            raise RuntimeError("token chunk received without a tokenizer")
        if logprobs is not None and len(logprobs) != len(ids):
            self._is_closed = True
            raise RuntimeError(
                f"invalid log probabilities: {len(logprobs)} log probabilities "
                f"for {len(ids)} token IDs"
            )
        if logprobs is None:
            return self._decoder.feed(ids, None)
        tokenizer = self._tokenizer
        entries = [
            _entry(tokenizer, token_id, logprob)
            for token_id, logprob in zip(ids, logprobs, strict=True)
        ]
        return self._decoder.feed(ids, entries)

    def _take(self, pieces: list[Piece]) -> list[Chunk]:
        if not pieces:
            return []
        chunks = self._start(None, None)
        for piece in pieces:
            self._num_tokens += piece.num_tokens
            chunks += self._report(self._parser.feed(piece))
            if self._parser.is_stopped:
                return chunks + self._end(FinishReason.STOP)
        return chunks

    def _parse_rest(self) -> list[Chunk]:
        return self._report(self._parser.finish())

    def _report(self, events: list[ParserEvent]) -> list[Chunk]:
        chunks: list[Chunk] = []
        for event in events:
            if isinstance(event, StopMatched):
                self._stop_sequence = event.stop_sequence
                continue
            if self._reasoning is not None and isinstance(event, TextDelta) and event.is_reasoning:
                self._reasoning.append(event.text)
            chunks += self._generator.event(event)
        return chunks

    def _end(self, reason: FinishReason) -> list[Chunk]:
        self._is_finished = True
        return self._generator.finish(Ending(reason, self._stop_sequence, self._usage(final=True)))

    def _usage(self, *, final: bool = False) -> Usage:
        reasoning: int | None = None
        if final and self._reasoning is not None and self._tokenizer is not None:
            reasoning = len(self._tokenizer.encode("".join(self._reasoning)))
        usage = self._prompt_usage
        return Usage(
            usage.prompt_tokens, usage.prompt_cache_hit_tokens, self._num_tokens, reasoning
        )


def _entry(tokenizer: Tokenizer, token_id: int, logprob: RawLogprob) -> TokenLogprob:
    value, top = logprob
    entry = logprob_entry(tokenizer.token_bytes(token_id) or b"", value)
    entry["top_logprobs"] = [
        logprob_entry(tokenizer.token_bytes(other) or b"", other_value)
        for other, other_value in top
    ]
    return entry
