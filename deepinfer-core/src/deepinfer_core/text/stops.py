"""Stop strings: where an output ends, and how much text may leave before that is known.

`StopChecker` works on text, `OutputText` on ids: it owns the one point at which text, ids and
logprobs of an output are cut.
The rule: the match that is complete first wins. Of several complete at the same character the one
that begins first wins, that is the longest. So the result does not depend on how the text or the
ids come in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deepinfer_core.text.detokenizer import IncrementalDetokenizer
from deepinfer_core.text.tokenizer import Tokenizer


class StopChecker:
    """Looks for stop strings in a text that arrives in pieces.

    Args:
        stops: non-empty strings.
        include_stop_str_in_output: let the text end after the match instead of before it.
    """

    def __init__(self, stops: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include_stop_str_in_output
        self._held = ""

    def feed(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Take the next piece.

        Args:
            text: may be empty.
            armed: False: a match that is complete within this piece does not count.

        Returns:
            The text that is safe to emit, and the stop string that ended it, if one did. Text
            that may be the beginning of a stop string is held back until that is decided.
        """
        text = self._held + text
        match = self._first_match(text) if armed else None
        if match is not None:
            start, end, stop = match
            self._held = ""
            return text[: end if self._include else start], stop
        cut = len(text) - self._num_held(text)
        self._held = text[cut:]
        return text[:cut], None

    def finish(self) -> str:
        """No more text will come: return what was held back."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            end = start + len(stop)
            if start >= 0 and (best is None or (end, start) < (best[1], best[0])):
                best = (start, end, stop)
        return best

    def _num_held(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while start >= 0 and len(text) - start > longest:
                if stop.startswith(text[start:]):
                    longest = len(text) - start
                    break
                start = text.find(stop[0], start + 1)
        return longest


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What some ids added to the text of an output."""

    text: str
    num_tokens_kept: int | None = None
    """Set once a stop string matched: ids of the whole output that belong to it, counted from
    its first. The last of them completed the match; what follows is to be dropped."""
    matched: str | None = None
    """The stop string."""


class OutputText:
    """Text of one output: detokenizer and stop strings together.

    The same ids give the same joined text and the same cut, however they are split into calls.

    Args:
        stop: as in `SamplingParams`.
        min_tokens: a stop string that is complete before this many ids does not count.
        skip_special_tokens, continues_text: as in `IncrementalDetokenizer`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        continues_text: bool = False,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, continues_text=continues_text
        )
        self._checker = (
            StopChecker(stop, include_stop_str_in_output=include_stop_str_in_output)
            if stop
            else None
        )
        self._include_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._end: TextDelta | None = None

    def feed(self, token_ids: Sequence[int], *, ends_with_stop_token: bool = False) -> TextDelta:
        """Take the next ids of the output.

        Args:
            token_ids: those that were committed since the last call.
            ends_with_stop_token: the last of them is an end-of-sequence or stop token. It counts
                as a token of the output, and is text only with `include_stop_str_in_output`.

        Returns:
            The text to emit now. After a match, every further call gives the same cut and no text.
        """
        hidden = ends_with_stop_token and not self._include_stop
        visible = token_ids[: len(token_ids) - 1] if hidden else token_ids
        if self._checker is None:
            self._num_tokens += len(token_ids)
            return TextDelta(self._detokenizer.feed(visible))
        parts: list[str] = []
        for token_id in visible:
            if self._end is not None:
                break
            self._num_tokens += 1
            parts.append(self._check(self._checker, self._detokenizer.feed((token_id,))))
        return self._delta("".join(parts))

    def finish(self) -> TextDelta:
        """No more ids will come: give out what was held back, unless a stop string cuts it."""
        text = ""
        if self._end is None:
            text = self._detokenizer.finish()
            if self._checker is not None:
                text = self._check(self._checker, text)
                if self._end is None:
                    text += self._checker.finish()
        return self._delta(text)

    def _check(self, checker: StopChecker, text: str) -> str:
        emitted, matched = checker.feed(text, armed=self._num_tokens >= self._min_tokens)
        if matched is not None:
            self._end = TextDelta("", self._num_tokens, matched)
        return emitted

    def _delta(self, text: str) -> TextDelta:
        if self._end is None:
            return TextDelta(text)
        return TextDelta(text, self._end.num_tokens_kept, self._end.matched)
