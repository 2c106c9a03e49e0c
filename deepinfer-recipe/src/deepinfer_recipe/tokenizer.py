"""A tokenizer file, and the two ways to encode with it.

Owns text -> ids and id -> bytes. Knows nothing of prompts. `encode` reads special tokens in the
text; `encode_pieces` never does: what is not marked as a special token is only ever text.
Joining bytes to text over several steps is done in `decoding`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers

from .arguments import check_optional_str, check_str


class Tokenizer:
    """A Hugging Face tokenizer from a `tokenizer.json` file."""

    def __init__(self, text: str) -> None:
        """Load the contents of a `tokenizer.json` file; prefer the `from_` constructors.

        Raises:
            ValueError: no tokenizer.
        """
        try:
            self._full = tokenizers.Tokenizer.from_str(text)
            definition = json.loads(text)
            definition.update(added_tokens=[], post_processor=None)
            self._plain = tokenizers.Tokenizer.from_str(json.dumps(definition))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"invalid tokenizer: {error}") from error
        self._added_text = {
            token_id: token.content
            for token_id, token in self._full.get_added_tokens_decoder().items()
        }
        self._added_ids = {text: token_id for token_id, text in self._added_text.items()}
        self._bytes_by_id: dict[int, bytes | None] = {}

    @staticmethod
    def from_file(path: str) -> Tokenizer:
        """Load a `tokenizer.json` file.

        Raises:
            OSError: the file cannot be read.
            ValueError: it holds no tokenizer.
        """
        return Tokenizer(Path(path).read_text(encoding="utf-8"))

    @staticmethod
    def from_str(text: str) -> Tokenizer:
        """Load the contents of a `tokenizer.json` file.

        Raises:
            ValueError: the text holds no tokenizer.
        """
        return Tokenizer(check_str("text", text))

    @staticmethod
    def from_pretrained(
        identifier: str, revision: str | None = None, token: str | None = None
    ) -> Tokenizer:
        """Download and cache `tokenizer.json` from the Hugging Face Hub (extra `hub`).

        Raises:
            ValueError: the download fails, or it holds no tokenizer.
        """
        check_str("identifier", identifier)
        try:
            loaded = tokenizers.Tokenizer.from_pretrained(
                identifier,
                revision=check_optional_str("revision", revision) or "main",
                token=check_optional_str("token", token),
            )
        except Exception as error:  # network, authentication, missing extra
            raise ValueError(f"failed to load tokenizer {identifier!r}: {error}") from error
        return Tokenizer(loaded.to_str())

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text` with the full vocabulary: spelled special tokens become ids.

        Nothing is added in front or behind. Prompts are encoded by the prompt encodings.
        """
        return list(self._full.encode(check_str("text", text), add_special_tokens=False).ids)

    def encode_pieces(self, pieces: Iterable[tuple[str, bool]]) -> list[int]:
        """Return the ids of plain stretches and special tokens (marked True), in order.

        INVARIANT: ids of the added vocabulary come only from marked pieces.

        Raises:
            RuntimeError: a special token is not in the added vocabulary.
        """
        pieces = list(pieces)
        for text, is_special in pieces:
            if is_special and text not in self._added_ids:
                raise RuntimeError(
                    f'failed to encode conversation: special token "{text}" '
                    "is not in the added vocabulary"
                )
        # Most stretches of a long conversation are the same few words of the format.
        stretches = list({text for text, is_special in pieces if not is_special})
        encodings = self._plain.encode_batch_fast(stretches, add_special_tokens=False)
        ids_by_text = {
            text: encoding.ids for text, encoding in zip(stretches, encodings, strict=True)
        }
        ids: list[int] = []
        for text, is_special in pieces:
            if is_special:
                ids.append(self._added_ids[text])
            else:
                ids += ids_by_text[text]
        return ids

    def added_id(self, text: str) -> int | None:
        """Return the id of an added token, or None."""
        return self._added_ids.get(text)

    def is_added(self, token_id: int) -> bool:
        """Whether the id belongs to the added vocabulary."""
        return token_id in self._added_text

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes that a token stands for, or None for an unknown id."""
        try:
            return self._bytes_by_id[token_id]
        except KeyError:
            pass
        text = self._added_text.get(token_id)
        if text is not None:
            value: bytes | None = text.encode()
        else:
            token = self._full.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None
            value = None if token is None else _from_byte_level(token)
        self._bytes_by_id[token_id] = value
        return value


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary.

    Printable Latin-1 characters stand for themselves, the other bytes for U+0100 onwards.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others: Sequence[int] = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_BY_CHAR = _byte_alphabet()


def _from_byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_BY_CHAR[char] for char in token])
    except KeyError:  # a vocabulary entry outside the alphabet spells itself
        return token.encode()
