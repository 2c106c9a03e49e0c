"""What the sampler keeps about each row: facts on the host, numbers on the device.

Host facts decide which code runs for which rows; the device arrays are what that code reads, so
that a step copies no parameters. Does not know the stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduling.plan import RowStart

MAX_CANDIDATES = 1024
"""Largest top_k that is served by picking candidates rather than by sorting the vocabulary."""


DrawKind = Literal["greedy", "candidates", "ranked", "whole"]
"""What drawing takes: argmax; a bounded top_k; an order of the vocabulary; nothing of these."""


@dataclass(frozen=True, slots=True)
class DrawInputs:
    """Device arrays of n rows, as the ops take them."""

    temperature: Tensor
    min_p: Tensor
    top_p: Tensor
    seeds: Tensor
    sample_indices: Tensor
    top_k: Tensor


class RowState:
    """Sampling parameters by row. A row that is given back stays until it is taken again.

    Args:
        max_num_seqs: number of rows.
        device: where the arrays live.
    """

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self._device = device
        self._params: dict[int, SamplingParams] = {}
        self._kinds: dict[int, DrawKind] = {}
        self._plain: set[int] = set()
        self._logprobs: dict[str, dict[int, int]] = {"raw": {}, "processed": {}}
        """Mode -> row -> number of most likely tokens."""
        self._floats = torch.zeros(max_num_seqs, 3, dtype=torch.float32, device=device)
        self._ints = torch.zeros(max_num_seqs, 3, dtype=torch.int64, device=device)

    def start_row(self, start: RowStart) -> None:
        row, params = start.row, start.params
        self._params[row] = params
        self._kinds[row] = _draw_kind(params)
        self._plain.discard(row)
        for rows in self._logprobs.values():
            rows.pop(row, None)
        if params.logprobs is not None:
            self._logprobs[params.logprobs_mode][row] = params.logprobs
        if _is_plain(start):
            self._plain.add(row)
        if self._kinds[row] == "greedy":
            return  # reads none of the following
        floats = torch.tensor([params.temperature, params.min_p, params.top_p])
        ints = torch.tensor(
            [_as_int64(start.seed), start.sample_index, max(params.top_k, 0)], dtype=torch.int64
        )
        self._floats[row] = floats.to(self._device, non_blocking=True)
        self._ints[row] = ints.to(self._device, non_blocking=True)

    def params(self, row: int) -> SamplingParams:
        return self._params[row]

    def all_plain(self, rows: Sequence[int]) -> bool:
        """Whether every row is greedy and wants neither stages nor log-probabilities."""
        return self._plain.issuperset(rows)

    def by_kind(self, rows: Sequence[int]) -> dict[DrawKind, list[int]]:
        """Indices into `rows` by what drawing takes."""
        kinds: dict[DrawKind, list[int]] = {}
        for i, row in enumerate(rows):
            kinds.setdefault(self._kinds[row], []).append(i)
        return kinds

    def logprobs(self, rows: Sequence[int], mode: str) -> dict[int, int]:
        """Index into `rows` -> number of most likely tokens, where this mode is wanted."""
        wanted = self._logprobs[mode]
        if not wanted:
            return {}
        return {i: wanted[row] for i, row in enumerate(rows) if row in wanted}

    def draw_inputs(self, rows: Tensor) -> DrawInputs:
        """Gather the arrays of [n] int64 rows."""
        temperature, min_p, top_p = self._floats.index_select(0, rows).unbind(dim=1)
        seeds, sample_indices, top_k = self._ints.index_select(0, rows).unbind(dim=1)
        return DrawInputs(temperature, min_p, top_p, seeds, sample_indices, top_k)


def _draw_kind(params: SamplingParams) -> DrawKind:
    if params.temperature == 0:
        return "greedy"
    if 0 < params.top_k <= MAX_CANDIDATES:
        return "candidates"
    return "ranked" if params.top_k > 0 or params.top_p < 1 else "whole"


def _is_plain(start: RowStart) -> bool:
    params = start.params
    return (
        params.temperature == 0
        and params.logprobs is None
        and not start.bad_token_ids
        and not params.min_tokens
        and not params.logits_stages
        and not params.logit_bias
        and params.allowed_token_ids is None
        and params.repetition_penalty == 1
        and params.presence_penalty == 0
        and params.frequency_penalty == 0
    )


def _as_int64(seed: int) -> int:
    """The signed number with the same 64 bits."""
    unsigned = seed & (2**64 - 1)
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned
