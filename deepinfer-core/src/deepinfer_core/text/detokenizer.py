"""`IncrementalDetokenizer`: ids in, finished characters out.

INVARIANT: the joined texts equal `Tokenizer.decode` of all ids, and no text ends in half a
character. Knows nothing of stop strings (`stops.py`) and nothing of requests.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from deepinfer_core.text.decoding import Decoding, byte_of_piece
from deepinfer_core.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


class IncrementalDetokenizer:
    """Decodes one growing sequence of ids. Linear in the number of ids; not thread-safe.

    Args:
        tokenizer: shared, never changed.
        skip_special_tokens: as in `Tokenizer.decode`.
        continues_text: the ids go on from other text, so that the space before the first word
            is kept where the tokenizer would drop it at the start of a text. The joined texts are
            then what `decode` of prompt and ids gives beyond the prompt's own text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        continues_text: bool = False,
    ) -> None:
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._stream = _make_stream(tokenizer, continues_text)

    def feed(self, token_ids: Sequence[int]) -> str:
        """Take the next ids and return the text that they complete, often empty."""
        if self._skipped:
            token_ids = [i for i in token_ids if i not in self._skipped]
        return self._stream.feed(token_ids)

    def finish(self) -> str:
        """No more ids will come: return what was held back, U+FFFD for half a character."""
        return self._stream.finish()


class _Stream(Protocol):
    def feed(self, token_ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...


def _make_stream(tokenizer: Tokenizer, continues_text: bool) -> _Stream:
    if tokenizer.decoding.kind == "byte_level":
        return _ByteLevelStream(tokenizer)
    if tokenizer.decoding.kind == "pieces":
        return _PieceStream(tokenizer, tokenizer.decoding, continues_text)
    return _WindowStream(tokenizer)


class _ByteLevelStream:
    """Tokens are bytes, and the text is their UTF-8 decoding with errors replaced."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        # Replaces each maximal ill-formed part by one U+FFFD, as the library does.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(self._token_bytes, token_ids)))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _PieceStream:
    """Tokens are text or single bytes.

    A run of byte tokens becomes text only as a whole: if it is not valid UTF-8, every byte of it
    becomes U+FFFD. So a run is held back until a text token ends it.
    """

    def __init__(self, tokenizer: Tokenizer, decoding: Decoding, continues_text: bool) -> None:
        self._piece_of = tokenizer.id_to_token
        self._space = decoding.space
        self._run = bytearray()
        self._num_spaces_to_strip = 0 if continues_text else decoding.num_stripped

    def feed(self, token_ids: Sequence[int]) -> str:
        parts: list[str] = []
        for token_id in token_ids:
            piece = self._piece_of(token_id)
            if piece is None:
                continue
            byte = byte_of_piece(piece)
            if byte is not None:
                self._run.append(byte)
                continue
            if self._run:
                parts.append(self._end_run())
            parts.append(piece.replace(self._space, " "))
        return self._strip("".join(parts))

    def finish(self) -> str:
        return self._strip(self._end_run())

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return _REPLACEMENT * len(run)

    def _strip(self, text: str) -> str:
        while text and self._num_spaces_to_strip:
            if text[0] != " ":
                self._num_spaces_to_strip = 0
                break
            text = text[1:]
            self._num_spaces_to_strip -= 1
        return text


class _WindowStream:
    """For decoders that cannot be followed token by token: decode a short window again.

    A window ends where its text does not end in U+FFFD; the tokens of the last window stay as
    context for the next. Exact for decoders that look no further than one window back.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._context: list[int] = []
        self._pending: list[int] = []

    def feed(self, token_ids: Sequence[int]) -> str:
        self._pending += token_ids
        text = self._new_text()
        if not text or text.endswith(_REPLACEMENT):
            return ""
        self._context, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        text = self._new_text()
        self._pending = []
        return text

    def _new_text(self) -> str:
        known = self._decode(self._context, skip_special_tokens=False)
        return self._decode(self._context + self._pending, skip_special_tokens=False)[len(known) :]
