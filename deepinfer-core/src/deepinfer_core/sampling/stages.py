"""The stages before the temperature, in their fixed order, each with the state of its rows.

Owns which rows want which stage; a row that wants none costs nothing. History is read on the
device. Does not know how tokens are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from deepinfer_core.sampling.step import SampleStep
from deepinfer_core.scheduling.plan import RowStart

T = TypeVar("T")

_INF = float("inf")
_NO_TOKEN = -2
"""Stands in the history for positions before the first token; equals no id."""
_ANY_TOKEN = -1
"""Matches every token, in front of bad words that are shorter than the longest."""


class Stage(Protocol):
    """Something that changes logits before the temperature."""

    def start_row(self, start: RowStart) -> None:
        """Take the state of a row, if it wants this stage."""

    def free_row(self, row: int) -> None:
        """Forget a row; nothing if it is not known."""

    def apply(self, logits: Tensor, step: SampleStep) -> Tensor:
        """Change [L, V] float32, in place where that is possible, and return it."""


class GrammarMask:
    """The bitmask that came with the step."""

    def __init__(self, mask_op: Callable[..., Tensor]) -> None:
        self._mask_op = mask_op

    def start_row(self, start: RowStart) -> None:
        """Grammars belong to a step, not to a row."""

    def free_row(self, row: int) -> None:
        """Nothing to forget."""

    def apply(self, logits: Tensor, step: SampleStep) -> Tensor:
        return logits if step.mask is None else self._mask_op(logits, step.mask)


class AllowedTokens:
    """`allowed_token_ids`, as one bitmask per row."""

    def __init__(
        self, mask_op: Callable[..., Tensor], *, vocab_size: int, device: torch.device
    ) -> None:
        self._mask_op = mask_op
        self._vocab_size = vocab_size
        self._device = device
        self._bitmasks: dict[int, Tensor] = {}

    def start_row(self, start: RowStart) -> None:
        if start.params.allowed_token_ids is not None:
            bitmask = pack_bitmask(start.params.allowed_token_ids, self._vocab_size)
            self._bitmasks[start.row] = bitmask.to(self._device, non_blocking=True)

    def free_row(self, row: int) -> None:
        self._bitmasks.pop(row, None)

    def apply(self, logits: Tensor, step: SampleStep) -> Tensor:
        indices = _wanted(self._bitmasks, step)
        if not indices:
            return logits
        bitmask = torch.stack([self._bitmasks[step.rows[i]] for i in indices])
        rows = None if step.is_all(indices) else step.ints(indices)
        return self._mask_op(logits, bitmask, rows)


class BadWords:
    """Forbids the last token of a sequence where the tokens before it are there already.

    The sequence may begin in the prompt: what counts is that it does not come to be.
    """

    def __init__(self) -> None:
        self._words: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._tables = _Cached(self._make_tables)

    def start_row(self, start: RowStart) -> None:
        words = tuple(word for word in start.bad_token_ids if word)
        if words:
            self._words[start.row] = words
            self._tables.forget()

    def free_row(self, row: int) -> None:
        self._words.pop(row, None)

    def apply(self, logits: Tensor, step: SampleStep) -> Tensor:
        indices = _wanted(self._words, step)
        if not indices:
            return logits
        heads, last = self._tables.get(step, indices)
        length = heads.shape[2]
        behind = torch.arange(length, 0, -1, device=step.device)
        positions = step.positions_of(indices)[:, None] - behind
        places = step.token_pool.places(step.rows_of(indices)[:, None], positions)
        history = step.token_pool.read(places)
        history = history.masked_fill(positions < 0, _NO_TOKEN)
        matches = ((heads == history[:, None, :]) | (heads == _ANY_TOKEN)).all(dim=-1)
        ceilings = torch.where(matches, -_INF, _INF).to(logits.dtype)
        flat = (step.ints(indices)[:, None] * logits.shape[1] + last).view(-1)
        # A minimum, since several words may end in the same token.
        logits.view(-1).scatter_reduce_(0, flat, ceilings.view(-1), "amin")
        return logits

    def _make_tables(self, step: SampleStep, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Heads [n, words, longest - 1] int32 and last ids [n, words] int64 of each row."""
        words = [self._words[step.rows[i]] for i in indices]
        most = max(len(row) for row in words)
        longest = max(len(word) for row in words for word in row)
        heads, last = [], []
        for row in words:
            for word in (*row, *row[:1] * (most - len(row))):  # the first word again fills up
                heads.append((_ANY_TOKEN,) * (longest - len(word)) + word[:-1])
                last.append(word[-1])
        shape = (len(words), most, longest - 1)
        table = torch.tensor(heads, dtype=torch.int32).view(shape)
        return table.to(step.device, non_blocking=True), step.ints(last).view(shape[:2])


class MinTokens:
    """Masks end-of-sequence and stop tokens until there are enough output tokens."""

    def __init__(self, *, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._stops: dict[int, tuple[int, list[int]]] = {}
        """Row -> the first position at which it may stop, and the tokens that stop it."""
        self._flat = _Cached(self._make_flat)

    def start_row(self, start: RowStart) -> None:
        stops = sorted(i for i in start.stop_token_ids if i < self._vocab_size)
        if start.params.min_tokens and stops:
            free_from = len(start.prompt_token_ids) + start.params.min_tokens
            self._stops[start.row] = (free_from, stops)
            self._flat.forget()

    def free_row(self, row: int) -> None:
        self._stops.pop(row, None)

    def apply(self, logits: Tensor, step: SampleStep) -> Tensor:
        indices = [
            i for i in _wanted(self._stops, step)
            if step.positions[i] < self._stops[step.rows[i]][0]
        ]  # fmt: skip
        if indices:
            logits.view(-1).index_fill_(0, self._flat.get(step, indices), -_INF)
        return logits

    def _make_flat(self, step: SampleStep, indices: Sequence[int]) -> Tensor:
        return step.ints(
            [i * self._vocab_size + stop for i in indices for stop in self._stops[step.rows[i]][1]]
        )


class LogitBias:
    """Adds `logit_bias`. What a mask has forbidden stays forbidden."""

    def __init__(self, *, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._biases: dict[int, dict[int, float]] = {}
        self._flat = _Cached(self._make_flat)

    def start_row(self, start: RowStart) -> None:
        if start.params.logit_bias:
            self._biases[start.row] = dict(start.params.logit_bias)
            self._flat.forget()

    def free_row(self, row: int) -> None:
        self._biases.pop(row, None)

    def apply(self, logits: Tensor, step: SampleStep) -> Tensor:
        indices = _wanted(self._biases, step)
        if not indices:
            return logits
        places, biases = self._flat.get(step, indices)
        flat = logits.view(-1)
        values = flat.index_select(0, places)
        # An infinite bias on a forbidden token would otherwise give NaN.
        flat.index_copy_(0, places, torch.where(values == -_INF, values, values + biases))
        return logits

    def _make_flat(self, step: SampleStep, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = [(i, self._biases[step.rows[i]]) for i in indices]
        places = step.ints([i * self._vocab_size + token for i, bias in rows for token in bias])
        biases = torch.tensor([value for _, bias in rows for value in bias.values()])
        return places, biases.to(step.device, non_blocking=True)


def pack_bitmask(token_ids: Sequence[int], vocab_size: int) -> Tensor:
    """[ceil(V / 32)] int32 with the bits of `token_ids` set."""
    num_words = -(-vocab_size // 32)
    bits = torch.zeros(num_words * 32, dtype=torch.int64)
    bits[torch.tensor(token_ids, dtype=torch.int64)] = 1
    return (bits.view(num_words, 32) << torch.arange(32)).sum(dim=1).to(torch.int32)


def _wanted(state: Container[int], step: SampleStep) -> list[int]:
    if not state:
        return []
    return [i for i, row in enumerate(step.rows) if row in state]


class _Cached(Generic[T]):
    """Tensors that depend only on which logits rows belong to which rows.

    In steady decoding these don't change from step to step, so nothing is copied to the device.
    """

    def __init__(self, make: Callable[[SampleStep, Sequence[int]], T]) -> None:
        self._make = make
        self._key: tuple[tuple[int, int], ...] | None = None
        self._value: T | None = None

    def get(self, step: SampleStep, indices: Sequence[int]) -> T:
        key = tuple((i, step.rows[i]) for i in indices)
        if self._value is None or key != self._key:
            self._key, self._value = key, self._make(step, indices)
        return self._value

    def forget(self) -> None:
        self._value = None
