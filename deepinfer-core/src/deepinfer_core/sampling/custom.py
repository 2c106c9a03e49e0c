"""Custom stages: logits functions that plugins register and requests name.

Owns the border to foreign code: what a stage is shown, and that its failure ends only the
requests it fails for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.sampling.step import SampleStep
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduling.plan import RowStart

_NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class StageContext:
    """What a custom stage may know about its n logits rows. Nothing here waits for the device."""

    params: Sequence[SamplingParams]
    """[n]"""
    prompt_token_ids: Sequence[Sequence[int]]
    """[n] prompts, on the host."""
    positions: Tensor
    """[n] int64: absolute position of the token to draw; position 0 is the prompt's first."""
    rows: Tensor
    """[n] int64: which requests these are, for `history`; of no meaning beyond the step."""
    token_pool: TokenPool

    def history(self, length: int) -> Tensor:
        """The tokens before the one to draw, prompt and output, newest last.

        Args:
            length: how many, at most `max_history`.

        Returns:
            [n, length] int32 on the device of the logits; -1 before the first token.

        Raises:
            ValueError: more than `max_history`.
        """
        if length > self.max_history:
            raise ValueError(f"history of {length} tokens wanted, {self.max_history} are kept")
        behind = torch.arange(length, 0, -1, device=self.positions.device)
        positions = self.positions[:, None] - behind
        token_ids = self.token_pool.read(self.token_pool.places(self.rows[:, None], positions))
        return token_ids.masked_fill(positions < 0, _NO_TOKEN)

    @property
    def max_history(self) -> int:
        """Tokens of history that are kept on the device; at least 48."""
        return self.token_pool.max_history


class LogitsStage(Protocol):
    """The type of a custom stage; the target of a `StageSpec`.

    It sees only the logits rows of requests that name it, and must treat each row alone: a row's
    result may not depend on which other rows are there. It may change `logits` in place.
    """

    def __call__(self, logits: Tensor, context: StageContext) -> Tensor:
        """Map [n, V] float32 to [n, V] float32; -inf forbids a token."""
        ...


class CustomStages:
    """Applies each row's `logits_stages` in the order that the request gives."""

    def __init__(self, stages: Mapping[str, LogitsStage]) -> None:
        self._stages = dict(stages)
        self._starts: dict[int, RowStart] = {}

    def start_row(self, start: RowStart) -> None:
        if start.params.logits_stages:
            self._starts[start.row] = start

    def free_row(self, row: int) -> None:
        self._starts.pop(row, None)

    def apply(self, logits: Tensor, step: SampleStep) -> Tensor:
        if not self._starts:
            return logits
        names = {
            i: self._starts[row].params.logits_stages
            for i, row in enumerate(step.rows)
            if row in self._starts
        }
        for turn in range(max(map(len, names.values()), default=0)):
            due: dict[str, list[int]] = {}
            for i, stages in names.items():
                if turn < len(stages):
                    due.setdefault(stages[turn], []).append(i)
            for name, indices in due.items():
                logits = self._apply_one(name, indices, logits, step)
        return logits

    def _apply_one(self, name: str, indices: list[int], logits: Tensor, step: SampleStep) -> Tensor:
        indices = [i for i in indices if i not in step.errors]
        if not indices:
            return logits
        picked = logits.index_select(0, step.ints(indices))
        try:
            changed = self._call(name, picked, indices, step)
        except Exception as error:  # a plugin border: its rows end, the others go on
            if len(indices) == 1:
                step.errors[indices[0]] = (
                    f"logits stage {name!r} failed: {type(error).__name__}: {error}; "
                    "leave it out of logits_stages, or repair or block its plugin"
                )
                return logits
            # One row may have failed for all: find out which.
            for i in indices:
                logits = self._apply_one(name, [i], logits, step)
            return logits
        return logits.index_copy_(0, step.ints(indices), changed)

    def _call(self, name: str, logits: Tensor, indices: Sequence[int], step: SampleStep) -> Tensor:
        starts = [self._starts[step.rows[i]] for i in indices]
        context = StageContext(
            params=[start.params for start in starts],
            prompt_token_ids=[start.prompt_token_ids for start in starts],
            positions=step.positions_of(indices),
            rows=step.rows_of(indices),
            token_pool=step.token_pool,
        )
        shape, dtype = logits.shape, logits.dtype
        changed = self._stages[name](logits, context)
        if not isinstance(changed, Tensor) or changed.shape != shape or changed.dtype != dtype:
            found = (
                f"{list(changed.shape)} {changed.dtype}"
                if isinstance(changed, Tensor)
                else type(changed).__name__
            )
            raise TypeError(f"returned {found} instead of {list(shape)} {dtype}")
        return changed
