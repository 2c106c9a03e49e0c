"""`measure_ops`: whole steps of a model beside each of their ops, and what the device allows.

The slowest op comes first; how far each is from its roofline says what there is to gain.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from deepinfer_core.bench.ceilings import Ceilings, measure_ceilings, wait_for
from deepinfer_core.bench.machine import describe_machine
from deepinfer_core.bench.op_costs import FP8
from deepinfer_core.bench.op_times import OpCall, OpTime, time_ops
from deepinfer_core.bench.open_engine import Opened, open_engine
from deepinfer_core.bench.steps import add_prompts, decoding, random_ids, recording, run_out
from deepinfer_core.config import EngineConfig
from deepinfer_core.plugin_api.kernel import Problem
from deepinfer_core.plugins import PluginHost

SCHEMA = 1
NUM_STEPS = 16
"""Of which a step's time is the mean."""
NUM_PROMPT_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsOptions:
    """Which steps to look at."""

    batches: Sequence[int] = (1, 32)
    """Decode steps of so many requests."""
    context: int = 1024
    """Tokens of each of their prompts."""
    prompts: Sequence[int] = ()
    """Also the step, or steps, that compute one prompt of so many tokens."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One kind of step. Milliseconds."""

    label: str
    step_ms: float
    """By the clock, in a run of such steps, with everything that the engine does."""
    ops_ms: float
    """Each op alone, added up. Less than the step: launches, copies, work outside of ops; more:
    kernels that overlap."""
    floor_ms: float
    """The longer of the time for all bytes and the time for all products."""
    num_bytes: int
    flop: int
    ops: list[OpTime]

    def as_json(self) -> dict[str, Any]:
        ops = [{**asdict(each), "of_roofline": each.of_roofline} for each in self.ops]
        return {**asdict(self), "of_roofline": self.floor_ms / self.step_ms, "ops": ops}


def measure_ops(
    config: EngineConfig,
    options: OpsOptions,
    *,
    host: PluginHost | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Load a model and look at some of its steps. Blocks for as long as that takes.

    Args:
        host, tell: as of `run_protocol`.

    Returns:
        Plain JSON values: `machine`, `model`, `ceilings`, and `steps` with their ops.

    Raises:
        RequestError: a prompt is too long for the model or the pool.
        ConfigError, ModelLoadError, PlatformError, PluginError: the model cannot be loaded.
    """
    tell(f"loading {config.model.model}")
    opened = open_engine(config, host)
    tell("copying and multiplying")
    ceilings = ceilings_for(opened)
    steps = []
    for batch in options.batches:
        tell(f"a decode step of {batch} requests")
        steps.append(_decode_step(opened, ceilings, batch, options.context))
    for length in options.prompts:
        tell(f"a prompt of {length} tokens")
        steps.append(_prompt_step(opened, ceilings, length))
    opened.engine.close()
    return {
        "schema": SCHEMA,
        "machine": asdict(describe_machine(opened.device)),
        "model": opened.facts,
        "ceilings": asdict(ceilings),
        "steps": [step.as_json() for step in steps],
    }


def ceilings_for(opened: Opened) -> Ceilings:
    """Of the dtypes that a model may multiply."""
    dtype = str(opened.model.dtype).removeprefix("torch.")
    holds_codes = any(p.element_size() == 1 for p in opened.model.parameters())
    return measure_ceilings(opened.device, {dtype, "float32"} | ({FP8} if holds_codes else set()))


def floor_ms(calls: Iterable[OpCall], ceilings: Ceilings) -> tuple[float, float]:
    """Milliseconds that the bytes of a step take at least, and that its products do."""
    costs = [call.cost for call in calls]
    memory_s = sum(map(ceilings.memory_s, costs))
    return memory_s * 1e3, sum(map(ceilings.product_s, costs)) * 1e3


def _decode_step(opened: Opened, ceilings: Ceilings, batch: int, context: int) -> StepReport:
    engine, device = opened.engine, opened.device
    with decoding(engine, batch, context=context, num_steps=NUM_STEPS + 2):
        wait_for(device)
        begun = time.perf_counter()
        for _ in range(NUM_STEPS):
            engine.advance()
        wait_for(device)
        step_s = (time.perf_counter() - begun) / NUM_STEPS
        with recording(engine, keeps_arguments=True) as recorder:
            engine.advance()
    label = f"decode, {batch} x {context}"
    return _report(label, step_s, recorder.calls, opened, ceilings)


def _prompt_step(opened: Opened, ceilings: Ceilings, length: int) -> StepReport:
    engine, generator = opened.engine, random.Random(length)

    def run() -> float:
        prompt = random_ids(generator, length, engine.info.vocab_size)
        wait_for(opened.device)
        begun = time.perf_counter()
        add_prompts(engine, [prompt], 1)
        run_out(engine)
        return time.perf_counter() - begun

    run()
    step_s = statistics.median(run() for _ in range(NUM_PROMPT_RUNS))
    with recording(engine, keeps_arguments=True) as recorder:
        run()
    return _report(f"prompt of {length}", step_s, recorder.calls, opened, ceilings)


def _report(
    label: str, step_s: float, calls: Sequence[OpCall], opened: Opened, ceilings: Ceilings
) -> StepReport:
    with torch.inference_mode():
        ops = time_ops(calls, opened.runtime, ceilings, _recordable(opened))
    return StepReport(
        label=label,
        step_ms=step_s * 1e3,
        ops_ms=sum(each.ms for each in ops),
        floor_ms=max(floor_ms(calls, ceilings)),
        num_bytes=sum(each.num_bytes for each in ops),
        flop=sum(each.flop for each in ops),
        ops=ops,
    )


def _recordable(opened: Opened) -> set[Problem]:
    return {
        choice.problem
        for choice in opened.engine.op_choices
        if "graph_safe" in choice.kernel.caps.features
    }
