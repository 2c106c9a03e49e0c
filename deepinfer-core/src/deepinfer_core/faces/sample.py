"""`Sample`: one request's output on its way from token ids to text, and to the answer in it.

INVARIANT: ids, text and log-probabilities of a sample end at the same token, and the earliest
event wins: a stop string in the last allowed token is a stop.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_core.errors import RequestError
from deepinfer_core.faces.reply import ReplyDelta, ReplyReader
from deepinfer_core.outputs import CompletionOutput, OutputDelta, Reply
from deepinfer_core.plugin_api.recipe import ReplyParser
from deepinfer_core.request import FinishReason, Request
from deepinfer_core.scheduling.plan import TokenLogprobs
from deepinfer_core.text.stops import OutputText
from deepinfer_core.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Added:
    """What a sample gained since it was last asked."""

    start: int
    """Ids that it had before."""
    text: str
    reply: ReplyDelta


class Sample:
    """One request and the text of its output so far.

    Args:
        reader: None: no recipe reads the ids, and the answer is the text.
        end_token_ids: stop tokens that are none to the caller, but the end of the model's turn.
    """

    __slots__ = (
        "_end_token_ids", "_parts", "_reader", "_reply", "_text", "error", "finish_reason",
        "num_seen", "request", "stop_reason",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        text: OutputText,
        reader: ReplyReader | None = None,
        *,
        end_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.request = request
        self.num_seen = 0
        """Ids that the text has taken; the length of the output once it has ended."""
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: RequestError | None = None
        """The recipe's parser failed."""
        self._text = text
        self._reader = reader
        self._end_token_ids = end_token_ids
        self._parts: list[str] = []
        self._reply = Reply()

    def take(self, closing: FinishReason | None = None) -> Added:
        """Take the ids that are new.

        Args:
            closing: no more will come, for this reason if the request has none of its own.
        """
        request, start = self.request, self.num_seen
        ids = request.output_token_ids[start:]
        reason = (request.finish_reason or "abort") if request.is_finished else closing
        # Some answers stop where their form leaves nothing to add.
        is_stopped = request.is_finished and reason == "stop" and bool(ids)
        has_stop_token = is_stopped and ids[-1] in request.stop_token_ids
        delta = self._text.feed(ids, ends_with_stop_token=has_stop_token)
        text = delta.text
        if reason is not None and delta.num_tokens_kept is None:
            delta = self._text.finish()
            text += delta.text
        self.num_seen += len(ids)
        if delta.num_tokens_kept is not None:
            self.num_seen = delta.num_tokens_kept
            self.finish_reason, self.stop_reason = "stop", delta.matched
        elif reason is not None:
            self.finish_reason = reason
            if request.stop_reason not in self._end_token_ids:
                self.stop_reason = request.stop_reason
        self._parts.append(text)
        return Added(start, text, self._read(start, text, hides_last=has_stop_token))

    def logprobs(self, start: int = 0) -> list[TokenLogprobs] | None:
        if self.request.params.logprobs is None:
            return None
        return self.request.logprobs[start : self.num_seen]

    def output(self) -> CompletionOutput:
        """The sample so far."""
        logprobs, text = self.logprobs(), "".join(self._parts)
        return CompletionOutput(
            index=self.request.sample_index,
            text=text,
            token_ids=self.request.output_token_ids[: self.num_seen],
            seed=self.request.seed,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=logprobs,
            cumulative_logprob=None if logprobs is None else sum(e.logprob for e in logprobs),
            is_parsed=self._reader is not None,
            content=text if self._reader is None else self._reply.content,
            reasoning_content=self._reply.reasoning_content,
            tool_calls=self._reply.tool_calls,
        )

    def delta(self, request_id: str, added: Added) -> OutputDelta:
        """What was added, for whoever follows the stream."""
        return OutputDelta(
            request_id=request_id,
            index=self.request.sample_index,
            text=added.text,
            token_ids=self.request.output_token_ids[added.start : self.num_seen],
            logprobs=self.logprobs(added.start),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error or self.request.error,
            content=added.reply.content,
            reasoning_content=added.reply.reasoning_content,
            tool_calls=added.reply.tool_calls,
        )

    def _read(self, start: int, text: str, *, hides_last: bool) -> ReplyDelta:
        """Let the recipe read the new ids that belong to the output, as `text` comes from them."""
        if self._reader is None:
            return ReplyDelta(text)
        is_stopped = isinstance(self.stop_reason, str)
        hides_last = hides_last and not self.request.params.include_stop_str_in_output
        stop = self.num_seen - (hides_last and not is_stopped)
        ids = self.request.output_token_ids[start:stop]
        try:
            if self.finish_reason is None:
                reply = self._reader.feed(ids)
            else:
                reply = self._reader.finish(ids, is_stopped=is_stopped)
        except Exception as error:  # a plugin's border; whatever it raises ends one request
            self.error = RequestError(
                f"the recipe could not read the answer: {type(error).__name__}: {error}"
            )
            self.error.__cause__ = error
            self.finish_reason, self.stop_reason = "error", None
            return ReplyDelta()
        self._reply.add(reply)
        return reply


def make_sample(
    request: Request,
    tokenizer: Tokenizer,
    *,
    continues_text: bool,
    parser: ReplyParser | None = None,
    end_token_ids: frozenset[int] = frozenset(),
) -> Sample:
    """The sample of a request that was just added.

    Args:
        continues_text: as in `EncodedPrompt`.
        parser: None: the answer is the text.
        end_token_ids: as in `Sample`.
    """
    params = request.params
    text = OutputText(
        tokenizer,
        stop=params.stop,
        include_stop_str_in_output=params.include_stop_str_in_output,
        min_tokens=params.min_tokens,
        continues_text=continues_text,
    )
    reader: ReplyReader | None = None
    if parser is not None:
        reader = ReplyReader(
            parser,
            stop=params.stop,
            include_stop_str_in_output=params.include_stop_str_in_output,
        )
    return Sample(request, text, reader, end_token_ids=end_token_ids)
