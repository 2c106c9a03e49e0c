"""`OpRecorder` sees every op of a step; `time_ops` runs them again, each kind alone.

A kind is one op in one role by one provider: all its calls of the step run one after another, with
the tensors that the step gave them, so each layer's weights come from memory as they do in a step.
Where the device has graphs they are recorded, and no launch counts. What a step does besides
ops, and what its kernels overlap, shows in the difference between the step and their sum.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from deepinfer_core.bench.ceilings import Ceilings
from deepinfer_core.bench.op_costs import OpCost, num_bytes, op_cost, whole_arguments
from deepinfer_core.ops.bound import BoundOp
from deepinfer_core.plugin_api.device import DeviceRuntime
from deepinfer_core.plugin_api.kernel import Problem

Args = tuple[Any, ...]
Kept = tuple[Args, dict[str, Any]]
Kind = tuple[str, str, str]
"""Op, role, provider."""

KEPT_BYTES = 2 << 30
"""Of arguments that only the step made: more would not fit beside the cache."""
SHORT_S = 0.01
"""A kind runs again and again for so long before the clock is read."""
NUM_RUNS = 5


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call that a step made."""

    bound: BoundOp
    cost: OpCost
    arguments: Kept | None
    """None: too large to keep."""

    def run(self) -> None:
        assert self.arguments is not None
        args, kwargs = self.arguments
        self.bound.fn(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class OpTime:
    """One kind of a step: all its calls together."""

    op: str
    role: str
    provider: str
    calls: int
    num_bytes: int
    flop: int
    ms: float
    """Of all calls; where not all could be kept, from those that were."""
    floor_ms: float
    """What the ceilings allow."""
    is_bound_by: str
    """`bytes` or `products`."""

    @property
    def of_roofline(self) -> float:
        return self.floor_ms / self.ms


class OpRecorder:
    """A context manager that fills `calls`; every bound op goes through it while it is open.

    It waits for the device after each call, so what passes is not to be timed.

    Args:
        keeps_arguments: so that calls can run again: of each kind the first, and more while they
            take, weights and caches aside, no more than `KEPT_BYTES`.
    """

    def __init__(self, model: nn.Module, *, keeps_arguments: bool = True) -> None:
        self.calls: list[OpCall] = []
        self._weights = {id(parameter) for parameter in model.parameters()}
        self._keeps_arguments, self._room = keeps_arguments, KEPT_BYTES
        self._kept_kinds: set[Kind] = set()
        self._call = BoundOp.__call__

    def __enter__(self) -> Self:
        recorder, plain_call = self, self._call

        def call(bound: BoundOp, *args: Any, **kwargs: Any) -> Any:
            result = plain_call(bound, *args, **kwargs)
            cost = op_cost(bound.problem.op, args, kwargs, result)
            recorder.calls.append(OpCall(bound, cost, recorder._kept(bound, args, kwargs)))
            return result

        BoundOp.__call__ = call  # type: ignore[method-assign, assignment]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        BoundOp.__call__ = self._call  # type: ignore[method-assign]

    def _kept(self, bound: BoundOp, args: Args, kwargs: dict[str, Any]) -> Kept | None:
        if not self._keeps_arguments:
            return None
        made = [
            value
            for value in whole_arguments(bound.problem.op, args, kwargs)
            if isinstance(value, Tensor) and id(value) not in self._weights
        ]
        self._room -= num_bytes(made)
        if self._room < 0 and kind_of(bound) in self._kept_kinds:
            return None
        self._kept_kinds.add(kind_of(bound))
        return args, kwargs


def kind_of(bound: BoundOp) -> Kind:
    """What its calls are added up under."""
    return bound.problem.op, bound.problem.role, bound.provider


def time_ops(
    calls: Sequence[OpCall], runtime: DeviceRuntime, ceilings: Ceilings, recordable: set[Problem]
) -> list[OpTime]:
    """Run the calls of a step again, kind by kind, the slowest kind first. Blocks.

    Args:
        recordable: problems whose kernels can be recorded as graphs.
    """
    kinds: dict[Kind, list[OpCall]] = defaultdict(list)
    for call in calls:
        kinds[kind_of(call.bound)].append(call)
    times = [
        _time_kind(kind, alike, runtime, ceilings, recordable) for kind, alike in kinds.items()
    ]
    return sorted(times, key=lambda kind: -kind.ms)


def _time_kind(
    kind: Kind,
    calls: list[OpCall],
    runtime: DeviceRuntime,
    ceilings: Ceilings,
    recordable: set[Problem],
) -> OpTime:
    kept = [call for call in calls if call.arguments is not None]
    can_record = runtime.supports_graphs and all(c.bound.problem in recordable for c in kept)
    with torch.inference_mode():
        seconds = _run_again(kept, runtime, can_record)
    floors = [ceilings.floor_s(call.cost) for call in calls]
    memory_s = sum(ceilings.memory_s(call.cost) for call in calls)
    product_s = sum(ceilings.product_s(call.cost) for call in calls)
    return OpTime(
        *kind,
        calls=len(calls),
        num_bytes=sum(call.cost.num_bytes for call in calls),
        flop=sum(call.cost.flop for call in calls),
        ms=seconds * 1e3 * len(calls) / len(kept),
        floor_ms=sum(floors) * 1e3,
        is_bound_by="bytes" if memory_s >= product_s else "products",
    )


def _run_again(calls: Sequence[OpCall], runtime: DeviceRuntime, can_record: bool) -> float:
    """Seconds of all calls, one after another: the median of some runs."""

    def run() -> None:
        for call in calls:
            call.run()

    again: Callable[[], None] = runtime.capture(run).replay if can_record else run
    once = _seconds(again, 1, runtime)
    repeats = max(1, round(SHORT_S / once))
    return statistics.median(_seconds(again, repeats, runtime) for _ in range(NUM_RUNS))


def _seconds(run: Callable[[], None], repeats: int, runtime: DeviceRuntime) -> float:
    runtime.synchronize()  # SYNC: measuring, between steps
    begun = time.perf_counter()
    for _ in range(repeats):
        run()
    runtime.synchronize()  # SYNC: measuring, between steps
    return (time.perf_counter() - begun) / repeats
