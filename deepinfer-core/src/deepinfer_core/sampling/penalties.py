"""Repetition, presence and frequency penalties: counts on the device for rows that need them.

Owns the count tables, a pool of slots that grows. Counts follow every draw without the host
knowing the token. A void draw of a row that has ended counts in a slot that is about to be cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from deepinfer_core.sampling.step import SampleStep
from deepinfer_core.scheduling.plan import RowStart
from deepinfer_core.staging import to_device


class Penalties:
    """A stage, and the receiver of the tokens that were drawn."""

    def __init__(
        self, penalties_op: Callable[..., Tensor], *, vocab_size: int, device: torch.device
    ) -> None:
        self._penalties_op = penalties_op
        self._device = device
        self._slots: dict[int, int] = {}
        """Row -> slot."""
        self._free_slots: list[int] = []
        self._prompt_mask = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._strengths = torch.zeros(0, 3, device=device)
        """Repetition, presence and frequency of each slot."""

    def start_row(self, start: RowStart) -> None:
        params = start.params
        strengths = (
            params.repetition_penalty, params.presence_penalty, params.frequency_penalty,
        )  # fmt: skip
        if strengths == (1.0, 0.0, 0.0):
            return
        if not self._free_slots:
            self._grow()
        slot = self._slots[start.row] = self._free_slots.pop()
        counts = self._counts[slot].zero_()
        if start.output_token_ids:
            drawn = to_device(start.output_token_ids, self._device)
            counts.index_add_(0, drawn, torch.ones_like(drawn, dtype=torch.int32))
        self._strengths[slot] = torch.tensor(strengths).to(self._device, non_blocking=True)
        prompt = torch.tensor(start.prompt_token_ids, dtype=torch.int64)
        mask = self._prompt_mask[slot].zero_()
        mask.index_fill_(0, prompt.to(self._device, non_blocking=True), True)

    def free_row(self, row: int) -> None:
        slot = self._slots.pop(row, None)
        if slot is not None:
            self._free_slots.append(slot)

    def apply(self, logits: Tensor, step: SampleStep) -> Tensor:
        indices = self._indices(step.rows)
        if not indices:
            return logits
        slots = step.ints([self._slots[step.rows[i]] for i in indices])
        selected = step.select(logits, indices)
        strengths = self._strengths.index_select(0, slots).unbind(dim=1)
        prompt_mask, counts = self._prompt_mask, self._counts
        if step.drafts and any(step.drafts[i] for i in indices):
            counts = self._with_drafts(slots, [step.drafts[i] for i in indices])
            prompt_mask = prompt_mask.index_select(0, slots)
            slots = torch.arange(len(indices), device=self._device)
        changed = self._penalties_op(selected, prompt_mask, counts, slots, *strengths)
        return step.write_back(logits, indices, changed)

    def _with_drafts(self, slots: Tensor, drafts: Sequence[Sequence[int]]) -> Tensor:
        """[n, V] counts of each logits row, as if the drafts before it had been drawn."""
        counts = self._counts.index_select(0, slots)
        vocab_size = counts.shape[1]
        places = [i * vocab_size + token for i, before in enumerate(drafts) for token in before]
        flat = to_device(places, self._device)
        counts.view(-1).index_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
        return counts

    def count(self, rows: Sequence[int], token_ids: Tensor, is_kept: Tensor | None = None) -> None:
        """Take note of drawn tokens. token_ids: [L] int32; is_kept: [L] bool, None: all."""
        indices = self._indices(rows)
        if not indices:
            return
        slots = to_device([self._slots[rows[i]] for i in indices], self._device)
        chosen = to_device(indices, self._device)
        places = slots * self._counts.shape[1] + token_ids[chosen].to(torch.int64)
        once = torch.ones_like(places) if is_kept is None else is_kept[chosen]
        self._counts.view(-1).index_add_(0, places, once.to(torch.int32))

    def _indices(self, rows: Sequence[int]) -> list[int]:
        if not self._slots:
            return []
        return [i for i, row in enumerate(rows) if row in self._slots]

    def _grow(self) -> None:
        num_slots = self._counts.shape[0]
        added = max(1, num_slots)
        # All or nothing: memory may run out, and a row that failed to start is started again.
        self._prompt_mask, self._counts, self._strengths = (
            torch.cat([old, old.new_zeros(added, old.shape[1])])
            for old in (self._prompt_mask, self._counts, self._strengths)
        )
        self._free_slots.extend(reversed(range(num_slots, num_slots + added)))
