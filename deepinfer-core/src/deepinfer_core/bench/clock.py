"""`StepClock`: where the time of each step goes, measured around the calls of a live engine.

While it is open it stands in front of the methods that begin each part; the engine has no code
for it. Parts exclude each other, so their sum is the step.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from deepinfer_core.engine import Engine
from deepinfer_core.scheduling.plan import StepPlan

MODEL_PARTS = ("forward", "sampler")
ENGINE_PARTS = ("schedule", "rows", "build", "output", "commit")
"""The engine's own work: who is next; rows, blocks and picking what needs logits; the batch's
tensors; tokens to the pool and to the host; what they do to requests."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step."""

    query_lens: Sequence[int]
    seq_lens: Sequence[int]
    """One per request."""
    parts_s: dict[str, float]

    @property
    def total_s(self) -> float:
        return sum(self.parts_s.values())

    @property
    def engine_s(self) -> float:
        """Everything outside the model's forward and the sampler."""
        return sum(self.parts_s[part] for part in ENGINE_PARTS)

    def is_decode(self, num_requests: int) -> bool:
        """Exactly so many requests, and one token each."""
        return len(self.query_lens) == num_requests == sum(self.query_lens)


class StepClock:
    """A context manager that fills `steps`.

    Args:
        timer: seconds; wall clock by default. `time.thread_time` leaves out what other processes
            take, and threads of kernels.
    """

    def __init__(self, engine: Engine, *, timer: Callable[[], float] = time.perf_counter) -> None:
        self.steps: list[StepTimes] = []
        runner = engine.runner
        self._timer = timer
        self._calls: list[tuple[object, str, str]] = [
            (engine, "advance", "output"),
            (engine.scheduler, "schedule", "schedule"),
            (engine.scheduler, "commit", "commit"),
            (runner, "submit", "rows"),
            (runner.builder, "build", "build"),
            (runner.model, "forward", "forward"),
            (runner.model, "compute_logits", "forward"),
            (runner.model, "lm_head_chunk", "forward"),
            (runner.sampler, "sample", "sampler"),
            (runner.sampler, "count", "sampler"),
            (runner.sampler, "prompt_logprobs", "sampler"),
        ]
        self._inner_s: list[float] = []
        """Per open call: time spent in the calls that it made."""
        self._parts_s: dict[str, float] = defaultdict(float)
        self._plan: StepPlan | None = None

    def __enter__(self) -> Self:
        for owner, name, part in self._calls:
            setattr(owner, name, self._timed(part, getattr(owner, name)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for owner, name, _ in self._calls:
            delattr(owner, name)  # what stood before is the class's own method again

    def decode_steps(self, num_requests: int) -> list[StepTimes]:
        """The steps in which exactly so many requests got one token each, in order."""
        return [step for step in self.steps if step.is_decode(num_requests)]

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if args and isinstance(args[0], StepPlan) and part == "rows":
                self._plan = args[0]
            self._inner_s.append(0.0)
            begun = self._timer()
            try:
                return function(*args, **kwargs)
            finally:
                elapsed = self._timer() - begun
                self._parts_s[part] += elapsed - self._inner_s.pop()
                if self._inner_s:
                    self._inner_s[-1] += elapsed
                else:
                    self._end_step()

        return run

    def _end_step(self) -> None:
        plan, parts_s = self._plan, self._parts_s
        self._plan, self._parts_s = None, defaultdict(float)
        if plan is not None:  # else the last step was only settled
            lens = zip(plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True)
            times = {part: parts_s[part] for part in (*MODEL_PARTS, *ENGINE_PARTS)}
            self.steps.append(
                StepTimes(plan.num_scheduled_tokens, [start + new for start, new in lens], times)
            )


def median_parts_ms(steps: Sequence[StepTimes]) -> dict[str, float]:
    """Median milliseconds of each part."""
    return {
        part: statistics.median(step.parts_s[part] for step in steps) * 1e3
        for part in (*MODEL_PARTS, *ENGINE_PARTS)
    }
