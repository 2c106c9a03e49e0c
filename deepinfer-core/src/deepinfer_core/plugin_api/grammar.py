"""What a compiler of grammars is: notation in, and out comes what says which tokens may come next.

A backend knows bytes and ids. Which answers end, what a model thinks before it answers and how a
JSON schema becomes a grammar is core's. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Notation: TypeAlias = Literal["ebnf", "lark", "structural_tag"]
"""`ebnf`: rules as in llama.cpp's GBNF, from `root` on. `lark`: from `start` on. `structural_tag`:
JSON as xgrammar documents it."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What each token writes."""

    token_bytes: Sequence[bytes]
    """One for each logit; empty for special tokens, ends of sequence and ids without a token, which
    a grammar never allows."""


class GrammarMatcher(Protocol):
    """Where one answer stands in its grammar. Used from one thread at a time."""

    def accept(self, token_id: int) -> bool:
        """Go on by one token. False: it is not allowed here, and nothing has changed."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the newest tokens. However far back, what follows is as if they had never
        been: drafts are looked at this way."""
        ...

    def fill(self, row: NDArray[np.int32]) -> None:
        """Write [ceil(V / 32)] bits: set where a token may come next, clear everywhere else."""
        ...

    @property
    def can_end(self) -> bool:
        """What there is so far is in the grammar."""
        ...


class CompiledGrammar(Protocol):
    """A grammar for one vocabulary. Thread-safe."""

    def matcher(self) -> GrammarMatcher:
        """A matcher at the beginning."""
        ...


class GrammarBackend(Protocol):
    """The target of a `GrammarBackendSpec`, called with `vocabulary=`, gives one. Thread-safe."""

    @property
    def notations(self) -> frozenset[str]:
        """Those of `Notation` that it reads; at least `ebnf`."""
        ...

    def compile(self, notation: Notation, text: str) -> CompiledGrammar:
        """Compile a grammar. May take long; runs beside the engine's loop.

        Raises:
            ValueError: the text is no grammar, in the backend's words.
        """
        ...
