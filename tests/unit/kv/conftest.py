"""Requests and managers in one line each."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from deepinfer_core.kv.layout import LayerKV, make_layout
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.request import Request
from deepinfer_core.sampling_params import SamplingParams

FULL = LayerKV("full", 1, 1, 1)


def window(size: int) -> LayerKV:
    return LayerKV("window", 1, 1, 1, size)


class Workbench:
    """A manager over small blocks, and requests that are computed without a scheduler."""

    def __init__(
        self, *layers: LayerKV, num_blocks: int = 32, block_size: int = 4, **options: Any
    ) -> None:
        self.kv = KVManager(
            make_layout(layers or [FULL], block_size=block_size), num_blocks, **options
        )
        self._ids = itertools.count()

    def request(self, prompt: list[int] | range, **params: Any) -> Request:
        request_id = next(self._ids)
        return Request(
            request_id,
            list(prompt),
            SamplingParams(**params),
            seed=0,
            stop_token_ids=frozenset(),
            max_total_tokens=1000,
            row=request_id,
        )

    def compute(self, request: Request, num_tokens: int | None = None) -> Any:
        """Allocate, count and settle, as a step does."""
        end = request.num_tokens if num_tokens is None else num_tokens
        updates = self.kv.allocate(request, end)
        if updates is not None:
            request.num_computed_tokens = end
            self.kv.register(request, end)
        self.kv.check_integrity()
        return updates

    def admit(self, request: Request) -> int:
        """Take the prefix hit and compute the rest."""
        hit = self.take_hit(request)
        assert self.compute(request) is not None
        return hit

    def take_hit(self, request: Request) -> int:
        request.num_hit_tokens = hit = self.kv.match_prefix(request)
        request.num_computed_tokens = self.kv.layout.first_to_compute(hit)
        return hit

    def free(self, request: Request) -> None:
        self.kv.free(request)
        request.num_computed_tokens = request.num_hit_tokens = 0
        self.kv.check_integrity()

    def fork(self, parent: Request, **params: Any) -> tuple[Request, Any]:
        child = self.request(parent.prompt_token_ids, **params)
        updates = self.kv.fork(parent, child)
        child.num_computed_tokens = parent.num_computed_tokens
        return child, updates

    def use_up(self, num_left: int) -> Request:
        """Take blocks for an unrelated request until `num_left` are free."""
        num_blocks = self.kv.pool.num_free_blocks - num_left
        hog = self.request([9000] * num_blocks * self.block_size)
        assert self.kv.allocate(hog, hog.num_tokens) is not None
        assert self.kv.pool.num_free_blocks == num_left
        return hog

    def tables(self, request: Request) -> list[list[int]]:
        held = self.kv._held.get(request.request_id)
        return [] if held is None else [list(table) for table in held.tables]

    def num_blocks(self, request: Request) -> int:
        return sum(1 for table in self.tables(request) for block in table if block)

    @property
    def block_size(self) -> int:
        return self.kv.layout.groups[0].block_size

    def snapshot(self) -> Any:
        """Everything that a failed allocation must leave alone."""
        pool = self.kv.pool
        free, block = [], pool._next[0]
        while block:
            free.append(block)
            block = pool._next[block]
        tables = {i: [list(t) for t in held.tables] for i, held in self.kv._held.items()}
        return list(pool.ref_counts), free, dict(pool.cached_blocks), tables


@pytest.fixture
def workbench() -> type[Workbench]:
    return Workbench
