"""What an encoder hands to the engine's edge, whoever encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Ids of one prompt and what has to be known to read its answer."""

    token_ids: Sequence[int]
    text: str | None = None
    """As the model sees it; None when ids were given or a recipe made them."""
    stop_token_ids: tuple[int, ...] = ()
    """Added to the request's own."""
    continues_text: bool = True
    """The output goes on from the prompt's text; False: it is a text of its own, as in a chat."""
