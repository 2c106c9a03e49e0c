"""Fill-in-the-middle prompts: the model writes what belongs between a prefix and a suffix."""

from __future__ import annotations

from ..arguments import check_instance, check_str
from ..specials import SpecialToken
from ..tokenizer import Tokenizer
from .pieces import Piece

_BEGIN, _HOLE, _END = "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"


def render_fim(prefix: str, suffix: str) -> list[Piece]:
    """Return the pieces of a prompt; both texts are plain, whatever they spell.

    Raises:
        TypeError: a text is no string.
    """
    pieces = [
        (SpecialToken.Bos.value, True),
        (_BEGIN, True),
        (check_str("prefix", prefix), False),
        (_HOLE, True),
        (check_str("suffix", suffix), False),
        (_END, True),
    ]
    return [piece for piece in pieces if piece[0]]


def encode_fim(tokenizer: Tokenizer, prefix: str, suffix: str) -> list[int]:
    """Return the token ids of a prompt.

    Raises:
        RuntimeError: the tokenizer lacks a special token.
    """
    check_instance("tokenizer", tokenizer, Tokenizer)
    return tokenizer.encode_pieces(render_fim(prefix, suffix))
