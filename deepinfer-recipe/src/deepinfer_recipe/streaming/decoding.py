"""Token ids to text, a step at a time, never half a character.

Knows nothing of markup. Text whose last character is not certain yet waits for more ids.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from ..parsing.patterns import Origin
from ..parsing.pieces import Piece
from ..tokenizer import Tokenizer
from .logprobs import TokenLogprob

_UNKNOWN = "\ufffd"


class TokenDecoder:
    """Joins the bytes of tokens to text pieces.

    Each added token is a piece of its own; the tokens between make one piece per call. Bytes that
    are no UTF-8 become U+FFFD once later text shows it; unknown ids stand for nothing.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._text: list[str] = []
        self._num_tokens = 0
        self._logprobs: list[TokenLogprob] = []

    def feed(self, token_ids: Iterable[int], logprobs: list[TokenLogprob] | None) -> list[Piece]:
        """Take ids and return the pieces of text that are certain."""
        pieces: list[Piece] = []
        for index, token_id in enumerate(token_ids):
            if self._tokenizer.is_added(token_id):
                self._flush_before_added(pieces)
                self._take(token_id, logprobs, index)
                pieces.append(self._piece(Origin.SPECIAL))
            else:
                self._take(token_id, logprobs, index)
        is_partial = bool(self._utf8.getstate()[0]) or self._ends_in_doubt()
        if self._text and not is_partial:
            pieces.append(self._piece(Origin.PLAIN))
        return pieces

    def finish(self) -> str:
        """Return what is left; an incomplete character is U+FFFD."""
        rest = "".join(self._text) + self._utf8.decode(b"", final=True)
        self._text.clear()
        return rest

    def _take(self, token_id: int, logprobs: list[TokenLogprob] | None, index: int) -> None:
        text = self._utf8.decode(self._tokenizer.token_bytes(token_id) or b"")
        if text:
            self._text.append(text)
        self._num_tokens += 1
        if logprobs is not None:
            self._logprobs.append(logprobs[index])

    def _ends_in_doubt(self) -> bool:
        return bool(self._text) and self._text[-1].endswith(_UNKNOWN)

    def _flush_before_added(self, pieces: list[Piece]) -> None:
        rest = self._utf8.decode(b"", final=True)
        if rest:
            self._text.append(rest)
        # Ids that stand for nothing stay in line and count with the added token.
        if self._text:
            pieces.append(self._piece(Origin.PLAIN))

    def _piece(self, origin: Origin) -> Piece:
        # Logprobs are reported for all tokens of a piece or for none.
        is_complete = self._num_tokens > 0 and len(self._logprobs) == self._num_tokens
        logprobs = self._logprobs if is_complete else None
        piece = Piece("".join(self._text), origin, self._num_tokens, logprobs)
        self._text.clear()
        self._num_tokens = 0
        self._logprobs = []
        return piece
