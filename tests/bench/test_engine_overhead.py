"""The engine's own work: everything in a step outside the model's forward and the sampler.

CPU time of the driving thread, since it never waits here. A tiny model serves for the absolute
numbers, since its size does not change them; the share of a step is taken from a real one.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass

import pytest
from deepinfer_core.bench.clock import ENGINE_PARTS, StepClock, median_parts_ms
from deepinfer_core.bench.speed import greedy
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.engine_setup import LoadedModel, load_model
from deepinfer_core.faces.frontend import Frontend
from deepinfer_core.faces.prompts import EncodedPrompt
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny import write_tiny_checkpoint

PROMPT_LEN = 9
NUM_STEPS = 60
WARM_UP_STEPS = 8


@dataclass
class Overhead:
    """Milliseconds of CPU per steady decode step."""

    num_running: int
    num_waiting: int
    edge: str
    engine_ms: float
    p90_engine_ms: float
    parts_ms: dict[str, float]
    edge_ms: float
    """Around the engine: the loop, and what happens to text."""
    forward_ms: float
    share: float
    """Of the engine's own work and the edge in the whole."""


def measure(
    loaded: LoadedModel, config: EngineConfig, *, num_waiting: int, edge: str = "results"
) -> Overhead:
    """Let the engine decode with all its seats taken and so many requests waiting behind."""
    num_running = config.scheduler.max_num_seqs
    engine = Engine.from_loaded(config, loaded)
    frontend = Frontend(engine, engine.tokenizer)
    num_steps = WARM_UP_STEPS + NUM_STEPS
    params = SamplingParams(**greedy(num_steps + num_running + 100))
    for index in range(num_running + num_waiting):
        ids = tuple(3 + (index * 7 + i * i) % 300 for i in range(PROMPT_LEN))
        frontend.start(
            EncodedPrompt(ids),
            params,
            on_done=lambda generation: None,
            on_delta=(lambda delta: None) if edge == "stream" else None,
        ).result()
    turns = []
    with StepClock(engine, timer=time.thread_time) as clock:
        while len(clock.decode_steps(num_running)) < num_steps:
            begun = time.thread_time()
            frontend.loop.turn()
            turns.append(time.thread_time() - begun)
    steps = clock.decode_steps(num_running)[WARM_UP_STEPS:]
    edge_s = statistics.median(
        turn - step.total_s
        for turn, step in zip(turns[-NUM_STEPS:], clock.steps[-NUM_STEPS:], strict=True)
    )
    frontend.loop.close()
    parts_ms = median_parts_ms(steps)
    own_s = sorted(step.engine_s for step in steps)
    total_s = statistics.median(step.total_s for step in steps) + edge_s
    return Overhead(
        num_running=num_running,
        num_waiting=num_waiting,
        edge=edge,
        engine_ms=statistics.median(own_s) * 1e3,
        p90_engine_ms=own_s[int(0.9 * len(own_s))] * 1e3,
        parts_ms={part: parts_ms[part] for part in ENGINE_PARTS},
        edge_ms=edge_s * 1e3,
        forward_ms=parts_ms["forward"],
        share=(statistics.median(own_s) + edge_s) / total_s,
    )


def lines_of(results: list[Overhead]) -> list[str]:
    head = "running  waiting  edge     engine ms    p90   " + "".join(
        f"{part:>9}" for part in ENGINE_PARTS
    )
    return [head + "     edge  forward   share"] + [
        f"{r.num_running:7}{r.num_waiting:9}  {r.edge:8}{r.engine_ms:10.3f}"
        f"{r.p90_engine_ms:7.3f}   "
        + "".join(f"{r.parts_ms[part]:9.3f}" for part in ENGINE_PARTS)
        + f"{r.edge_ms:9.3f}{r.forward_ms:9.2f}{r.share:8.1%}"
        for r in results
    ]


@pytest.mark.bench
def test_own_work_of_a_step(tmp_path, publish):
    """Target: under 1 ms at 256 running, and the same however many wait."""
    path = write_tiny_checkpoint(tmp_path / "tiny", "llama")

    def config(num_running: int) -> EngineConfig:
        return EngineConfig.from_flat(
            str(path), dtype="float32", num_threads=1, max_num_seqs=num_running,
            num_blocks=num_running * 24 + 1,
        )  # fmt: skip

    loaded = load_model(config(1), PluginHost(load_entry_points=False))
    results = [measure(loaded, config(num), num_waiting=10) for num in (1, 16, 64, 256)]
    results += [
        measure(loaded, config(num), num_waiting=waiting)
        for num in (64, 256)
        for waiting in (100, 1000, 10_000)
    ]
    results += [measure(loaded, config(num), num_waiting=10, edge="stream") for num in (64, 256)]
    publish("engine_overhead", lines_of(results), [asdict(result) for result in results])


@pytest.mark.bench
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_share_of_a_real_step(smollm2, dtype, publish):
    """Target: under 5 % of a step at 64 running requests."""
    config = EngineConfig.from_flat(
        str(smollm2), dtype=dtype, max_num_seqs=64, num_blocks=64 * 16 + 1
    )
    loaded = load_model(config, PluginHost(load_entry_points=False))
    results = [measure(loaded, config, num_waiting=10, edge=edge) for edge in ("results", "stream")]
    publish(f"engine_share_{dtype}", lines_of(results), [asdict(result) for result in results])
