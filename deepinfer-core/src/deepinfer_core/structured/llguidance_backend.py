"""Grammars compiled by llguidance (extra `structured`).

Its lexer takes the longest match, and so would refuse texts that a grammar has whenever a rule may
end early. So the whole grammar becomes one expression where it can, and else each character is a
word of its own: slower, and exact.
"""

from __future__ import annotations

import json

import llguidance
import numpy as np
from numpy.typing import NDArray

from deepinfer_core.plugin_api.grammar import Notation, Vocabulary
from deepinfer_core.structured.ebnf_reader import (
    Chain,
    Chars,
    Choice,
    Part,
    Rule,
    Times,
    read_ebnf,
    references,
)

NO_FORCING = '%llguidance {"no_forcing": true}\n'
"""Where only one text can follow, any of its tokens may, not only those that a tokenizer makes."""


class LlguidanceBackend:
    """Compiles for one vocabulary. Ends of sequence are none of its concern."""

    notations: frozenset[Notation] = frozenset({"ebnf", "lark"})

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocab_size = len(vocabulary.token_bytes)
        self._tokenizer = llguidance.LLTokenizer(
            _Tokens(vocabulary),  # type: ignore[arg-type]  # it wants attributes, not the class
            n_vocab=self._vocab_size + 1,
            slices=[],
        )

    def compile(self, notation: Notation, text: str) -> LlguidanceGrammar:
        """Compile a grammar.

        Raises:
            ValueError: it is none.
        """
        lark = to_lark(read_ebnf(text)) if notation == "ebnf" else text
        if not lark.lstrip().startswith("%llguidance"):
            lark = NO_FORCING + lark
        grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        first = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if first.is_error():
            raise ValueError(first.get_error().strip().splitlines()[0])
        return LlguidanceGrammar(first, self._vocab_size)


class LlguidanceGrammar:
    """A compiled grammar."""

    def __init__(self, first: llguidance.LLMatcher, vocab_size: int) -> None:
        self._first = first
        self._vocab_size = vocab_size

    def matcher(self) -> LlguidanceMatcher:
        """A matcher at the beginning."""
        return LlguidanceMatcher(self._first.deep_copy(), self._vocab_size)


class LlguidanceMatcher:
    """Where one answer stands."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        # One more token than the vocabulary has: its end of sequence.
        self._mask = np.zeros(vocab_size // 32 + 1, dtype=np.int32)

    def accept(self, token_id: int) -> bool:
        """Go on by one token, if it is allowed."""
        is_accepted = self._matcher.try_consume_tokens([token_id]) == 1
        self._check()
        return is_accepted

    def rollback(self, num_tokens: int) -> None:
        """Take back the newest tokens."""
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._check()

    def fill(self, row: NDArray[np.int32]) -> None:
        """Write the bits of what may come next."""
        mask = self._mask
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        mask.view(np.uint32)[-1] &= np.uint32((1 << self._vocab_size % 32) - 1)
        row[:] = mask[: len(row)]

    @property
    def can_end(self) -> bool:
        """What there is so far is in the grammar."""
        return self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RuntimeError(self._matcher.get_error().strip().splitlines()[0])


class _Tokens:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = len(vocabulary.token_bytes)
        self.tokens = [*vocabulary.token_bytes, b"\xff<end>"]
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        """Not asked for anything that counts: grammars are matched, prompts are not encoded."""
        return []


def to_lark(rules: dict[str, Part]) -> str:
    """The same grammar as llguidance reads it."""
    needed = _needed(rules)
    order = _order(rules, needed)
    names = {name: f"r{index}" for index, name in enumerate(needed)}
    if order is None:
        lines = [f"{names[n]}: {_write(rules[n], names, is_word=False)}" for n in needed]
        return "\n".join([f"start: {names['root']}", *lines]) + "\n"
    names = {name: name_.upper() for name, name_ in names.items()}
    lines = [f"{names[n]}: {_write(rules[n], names, is_word=True)}" for n in order]
    return "\n".join([f"start: {names['root']}", *lines]) + "\n"


def _needed(rules: dict[str, Part]) -> list[str]:
    """Rules that the root needs, itself first."""
    found = {"root": None}
    queue = ["root"]
    while queue:
        for name in sorted(references(rules[queue.pop()])):
            if name not in found:
                found[name] = None
                queue.append(name)
    return list(found)


def _order(rules: dict[str, Part], needed: list[str]) -> list[str] | None:
    """Rules behind those that they need; None: some need themselves."""
    missing = {name: references(rules[name]) for name in needed}
    order: list[str] = []
    while missing:
        ready = [name for name, wants in missing.items() if not wants - set(order)]
        if not ready:
            return None
        order += ready
        for name in ready:
            del missing[name]
    return order


def _write(part: Part, names: dict[str, str], *, is_word: bool) -> str:
    """A part in Lark.

    Args:
        is_word: within one word of the lexer; else each character is one.
    """
    match part:
        case Chars(ranges):
            return _class(ranges) if ranges else "/[^\\x00-\\u{10FFFF}]/"
        case Rule(name):
            return names[name]
        case Chain(parts):
            text = _text(part)
            if text is not None and (is_word or len(text) < 2):
                return json.dumps(text)
            return f"({' '.join(_write(each, names, is_word=is_word) for each in parts)})"
        case Choice(parts):
            return f"({' | '.join(_write(each, names, is_word=is_word) for each in parts)})"
        case Times(inner, least, most):
            bounds = f"{{{least},{'' if most is None else most}}}"
            return f"({_write(inner, names, is_word=is_word)}){bounds}"


def _text(part: Chain) -> str | None:
    """The text, if it is one."""
    found = ""
    for each in part.parts:
        if not isinstance(each, Chars) or len(each.ranges) != 1:
            return None
        ((low, high),) = each.ranges
        if low != high:
            return None
        found += chr(low)
    return found


def _class(ranges: tuple[tuple[int, int], ...]) -> str:
    pairs = (f"\\u{{{low:x}}}-\\u{{{high:x}}}" for low, high in ranges)
    return f"/[{''.join(pairs)}]/"
