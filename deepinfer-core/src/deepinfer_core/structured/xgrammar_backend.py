"""Grammars compiled by xgrammar (extra `structured`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xgrammar
from numpy.typing import NDArray

from deepinfer_core.plugin_api.grammar import Notation, Vocabulary
from deepinfer_core.structured.ebnf_reader import read_ebnf
from deepinfer_core.structured.right_linear import right_linear

COMPILE_THREADS = 2


class XgrammarBackend:
    """Compiles for one vocabulary. Ends of sequence are none of its concern."""

    notations = frozenset({"ebnf", "lark", "structural_tag"})

    def __init__(self, vocabulary: Vocabulary) -> None:
        info = xgrammar.TokenizerInfo(
            list(vocabulary.token_bytes), xgrammar.VocabType.RAW, stop_token_ids=[]
        )
        # Core keeps what was compiled; a second cache would only hold on to it longer.
        compiler = xgrammar.GrammarCompiler(info, max_threads=COMPILE_THREADS, cache_enabled=False)
        self._compile: dict[str, Callable[[str], Any]] = {
            "ebnf": compiler.compile_grammar,
            "lark": compiler.compile_lark,
            "structural_tag": compiler.compile_structural_tag,
        }

    def compile(self, notation: Notation, text: str) -> XgrammarGrammar:
        """Compile a grammar.

        Raises:
            ValueError: it is none.
        """
        if notation == "ebnf":
            text = _quickened(text)
        try:
            return XgrammarGrammar(self._compile[notation](text))
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(_words(error)) from error


class XgrammarGrammar:
    """A compiled grammar."""

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._compiled = compiled

    def matcher(self) -> XgrammarMatcher:
        """A matcher at the beginning."""
        return XgrammarMatcher(xgrammar.GrammarMatcher(self._compiled))


class XgrammarMatcher:
    """Where one answer stands."""

    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self._matcher = matcher

    def accept(self, token_id: int) -> bool:
        """Go on by one token, if it is allowed."""
        accepted: bool = self._matcher.accept_token(token_id)
        return accepted

    def rollback(self, num_tokens: int) -> None:
        """Take back the newest tokens."""
        if num_tokens:
            self._matcher.rollback(num_tokens)

    def fill(self, row: NDArray[np.int32]) -> None:
        """Write the bits of what may come next."""
        # It leaves the row alone where all is allowed.
        row.fill(-1)
        self._matcher.fill_next_token_bitmask(row[None], 0)

    @property
    def can_end(self) -> bool:
        """What there is so far is in the grammar."""
        completed: bool = self._matcher.is_completed()
        return completed


def _quickened(text: str) -> str:
    """A grammar that means the same, whose masks are quicker to fill if it is a small one."""
    try:
        return right_linear(read_ebnf(text)) or text
    except (ValueError, RecursionError):  # of a kind that only xgrammar reads, or none
        return text


def _words(error: Exception) -> str:
    """What it says, without where in its sources it says so."""
    text = str(error).strip()
    _, marker, rest = text.partition("] ")
    if marker and text.startswith("["):
        _, _, text = rest.partition(": ")
    return text.strip() or type(error).__name__
