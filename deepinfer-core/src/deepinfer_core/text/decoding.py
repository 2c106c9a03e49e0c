"""How token spellings become bytes, read off a backend's decoder. Knows no stream and no file.

Two kinds of decoder cover the models served here, and both can be followed token by token:
byte-level (every character of a spelling is one byte) and pieces (spaces are written as U+2581,
bytes as `<0x0A>`). Any other is left to the library.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

import tokenizers

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Decoding:
    """What has to be known to decode token by token."""

    kind: Literal["byte_level", "pieces", "other"]
    space: str = ""
    """Of pieces: the text that stands for a space."""
    num_stripped: int = 0
    """Of pieces: how many spaces are dropped from the start of the text."""


def _byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level vocabularies write for each byte.

    Printable Latin-1 stands for itself, the other bytes take U+0100 and up in order (Radford et
    al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + offset): byte for offset, byte in enumerate(rest)
    }


BYTE_OF_CHARACTER = _byte_alphabet()


def describe_decoder(backend: tokenizers.Tokenizer) -> Decoding:
    """Tell which of the kinds a backend's decoder is."""
    if backend.decoder is None:
        return Decoding("other")
    # The decoder's state is only readable through pickling, which is JSON.
    spec: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    if spec["type"] == "ByteLevel":
        return Decoding("byte_level")
    steps = spec.get("decoders", [])
    if [step["type"] for step in steps[:3]] != ["Replace", "ByteFallback", "Fuse"]:
        return Decoding("other")
    space = steps[0]["pattern"].get("String")
    strips = steps[3:]
    plain = space and steps[0]["content"] == " "
    if not plain or len(strips) > 1 or (strips and not _strips_spaces_at_start(strips[0])):
        return Decoding("other")
    return Decoding("pieces", space=space, num_stripped=strips[0]["start"] if strips else 0)


def byte_of_piece(piece: str) -> int | None:
    """The byte that a piece such as `<0x0A>` stands for; None for text."""
    match = _BYTE_PIECE.fullmatch(piece) if len(piece) == 6 else None
    return int(match[1], 16) if match else None


def piece_bytes(piece: str, decoding: Decoding) -> bytes:
    """UTF-8 bytes of one spelling, as the decoder would give them in the middle of a text."""
    if decoding.kind == "byte_level":
        try:
            return bytes(BYTE_OF_CHARACTER[character] for character in piece)
        except KeyError:  # added tokens are spelled plainly
            return piece.encode()
    if decoding.kind == "pieces":
        byte = byte_of_piece(piece)
        return piece.replace(decoding.space, " ").encode() if byte is None else bytes([byte])
    return piece.encode()


def _strips_spaces_at_start(step: dict[str, Any]) -> bool:
    return bool(step["type"] == "Strip" and step["content"] == " " and step["stop"] == 0)
