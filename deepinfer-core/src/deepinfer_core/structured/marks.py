"""Characters that stand for tokens of the added vocabulary in grammars.

A grammar knows characters, not tokens. So in the vocabulary of grammars that name tokens, each such
token writes one private character, which is in no class of characters and in no text of ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from deepinfer_core.plugin_api.grammar import Vocabulary
from deepinfer_core.structured.ebnf import MAX_CODE_POINT
from deepinfer_core.text.tokenizer import Tokenizer

MAX_MARKS = 0xFFFE
_LEAD_BYTE = 0xF4
"""Begins these characters in UTF-8, and no others."""


class TokenMarks:
    """The marks of one vocabulary.

    Args:
        tokens: spelling and id of each token that a grammar may name.
    """

    def __init__(self, tokens: Iterable[tuple[str, int]]) -> None:
        known = list(tokens)[:MAX_MARKS]
        marks = [chr(MAX_CODE_POINT + 1 + index) for index in range(len(known))]
        self.by_id = {token_id: mark for (_, token_id), mark in zip(known, marks, strict=True)}
        self.by_name = {name: mark for (name, _), mark in zip(known, marks, strict=True)}


def make_vocabulary(
    tokenizer: Tokenizer,
    vocab_size: int,
    end_ids: Collection[int],
    marks: Mapping[int, str] | None,
) -> Vocabulary:
    """What each token writes. Those of the added vocabulary write nothing, or their marks.

    Args:
        end_ids: write nothing in any case.
        marks: None: grammars cannot name tokens.
    """
    silent = {*tokenizer.added_tokens, *end_ids}
    token_bytes = [
        b"" if token_id in silent else tokenizer.token_bytes(token_id)
        for token_id in range(vocab_size)
    ]
    if marks is not None:
        # Only the token itself may write its mark, no tokens of single bytes.
        token_bytes = [b"" if _LEAD_BYTE in written else written for written in token_bytes]
        for token_id, mark in marks.items():
            if token_id < vocab_size and token_id not in end_ids:
                token_bytes[token_id] = mark.encode()
    return Vocabulary(token_bytes)
