"""Who guesses in tests: drafts that are accepted as often as a test wants, and costs of its choice.

Real text repeats itself too seldom, and tiny random models never do what one expects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import torch

from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.drafters.draft_model import DraftModel
from deepinfer_core.models.drafters.interface import Drafts
from deepinfer_core.plugin_api.proposer import Proposer
from deepinfer_core.speculative.budget import DraftCosts, StepCosts
from deepinfer_core.speculative.ngram import Ngram
from deepinfer_core.speculative.suffix import Suffix

HOST_PROPOSERS: Mapping[str, Callable[[], Proposer]] = {"ngram": Ngram, "suffix": Suffix}
"""Those that guess from a request's own tokens."""

SHARE_RIGHT = 0.8
"""Of the tokens of a draft: rejection comes at every depth, and acceptance of all."""

SHARE_CHANGED = 0.2
"""Of what the model itself would draft."""

Script = tuple[Sequence[int], Sequence[int]]
"""A prompt, and what one of its samples answers."""


class RehearsedGuesser:
    """Finds the script that a request follows, and recites from it with mistakes."""

    def __init__(self, scripts: Sequence[Script], rng: Random) -> None:
        self._scripts = scripts
        self._rng = rng
        self._ids: list[int] = []

    def extend(self, token_ids: Sequence[int]) -> None:
        self._ids += token_ids

    def propose(self, num_tokens: int) -> Sequence[int]:
        rng, count = self._rng, len(self._ids)
        for prompt, answer in self._scripts:
            whole = [*prompt, *answer]
            if count < len(whole) and whole[:count] == self._ids:
                drafts = whole[count : count + rng.randint(0, num_tokens)]
                return [
                    token if rng.random() < SHARE_RIGHT else rng.choice(self._ids)
                    for token in drafts
                ]
        return ()


class Rehearsed:
    """A `Proposer`.

    Args:
        scripts: all that may be asked and answered.
    """

    def __init__(self, scripts: Sequence[Script], *, seed: int) -> None:
        self._scripts = scripts
        self._rng = Random(f"rehearsal-{seed}")

    def start(self) -> RehearsedGuesser:
        return RehearsedGuesser(self._scripts, self._rng)


class Twin(DraftModel):
    """The model as its own draft model, with mistakes: the way of drafts over the device.

    Raises:
        ConfigError: it cannot draft.
    """

    def __init__(self, model: CausalModel, *, seed: int) -> None:
        first_cache = len(model.layer_kv())
        super().__init__(model, vocab_size=model.vocab_size, first_cache=first_cache)
        self._rng = Random(f"twin-{seed}")

    def draft(self, *args: Any, **kwargs: Any) -> Drafts:
        drafts = super().draft(*args, **kwargs)
        rng, ids = self._rng, drafts.token_ids
        shifts = [int(rng.random() < SHARE_CHANGED) for _ in range(ids.numel())]
        changes = torch.tensor(shifts, dtype=ids.dtype, device=ids.device).view_as(ids)
        confidence = torch.tensor([rng.random() for _ in shifts]).view(ids.shape)
        return Drafts((ids + changes) % self.vocab_size, drafts.logits, confidence)


class MadeUpCosts:
    """What steps and drafts might cost, so that guards decide this way and that."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"costs-{seed}")

    def step_costs(self) -> StepCosts:
        slope = self._rng.choice((0.0, 0.02, 0.3))
        return StepCosts((1, 11), (1.0, 1.0 + 10 * slope))

    def draft_costs(self, num_drafts: int) -> DraftCosts:
        rng = self._rng
        return DraftCosts(rng.choice((0.0, 0.1)), rng.choice((0.0, 0.2)), rng.choice((0.0, 0.2)))
