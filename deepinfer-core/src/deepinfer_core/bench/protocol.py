"""`run_protocol`: tests of one name and one form for every engine, so that figures compare.

`lat:B:IN:OUT` is a decode step of B requests, the difference of two runs over the tokens between
them; `ttft:B:IN` the time to the first token of B prompts at once; `thr:N:IN:OUT` tokens per second
of N prompts submitted at once. Greedy, without end tokens and text, every prompt new. Beside each
decode step and first token stands what its ops must move and multiply at least, counted in one
such run (`op_costs`), over the ceilings of the device.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from deepinfer_core.bench.ceilings import Ceilings, wait_for
from deepinfer_core.bench.machine import describe_machine
from deepinfer_core.bench.op_steps import ceilings_for, floor_ms
from deepinfer_core.bench.op_times import OpCall
from deepinfer_core.bench.open_engine import Opened, open_engine
from deepinfer_core.bench.steps import (
    SETTLED_TOKENS,
    add_prompts,
    decoding,
    random_ids,
    recording,
    run_out,
)
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError, DeepInferError
from deepinfer_core.plugins import PluginHost

SCHEMA = 1
SETS = {
    "smoke": "lat:1:128:16,ttft:1:1024",
    "std": "lat:1:1024:64,lat:8:1024:64,lat:32:1024:64,lat:128:1024:64,"
    "ttft:1:1024,ttft:1:8192,ttft:1:32768,thr:256:512:256",
    "short": "lat:1:1024:48,lat:8:1024:48,lat:32:1024:48,lat:128:1024:48,"
    "ttft:1:1024,ttft:1:8192,thr:256:512:128",
}
FORMS = {"lat": 3, "ttft": 2, "thr": 3}
"""Kind of test -> how many numbers follow."""

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProtocolTest:
    """One line of the protocol."""

    kind: Literal["lat", "ttft", "thr"]
    count: int
    """Prompts."""
    length: int
    """Tokens of each."""
    num_tokens: int
    """Drawn for each."""


def parse_tests(text: str) -> list[ProtocolTest]:
    """The tests of a set, or those that are written out, separated by commas.

    Raises:
        ConfigError: no such set, or not the form of a test.
    """
    return [_parse_test(part) for part in SETS.get(text, text).split(",")]


def run_protocol(
    config: EngineConfig,
    tests: Iterable[ProtocolTest],
    *,
    repeats: int = 3,
    seed: int = 0,
    host: PluginHost | None = None,
    tell: Callable[[str], None] = lambda what: None,
    emit: Callable[[Result], None] = lambda result: None,
) -> dict[str, Any]:
    """Load a model and run tests one after another. Blocks for as long as that takes.

    Args:
        host: plugins already loaded; default: those that the configuration allows.
        tell: called with what is running now.
        emit: called with the result of each test when it is there; one that cannot be run has
            an `error`.

    Returns:
        Plain JSON values: `machine`, `model`, `ceilings`, `ops`, `results`.

    Raises:
        ConfigError, ModelLoadError, PlatformError, PluginError: the model cannot be loaded.
    """
    tell(f"loading {config.model.model}")
    begun = time.perf_counter()
    opened = open_engine(config, host)
    wait_for(opened.device)
    start_s = time.perf_counter() - begun
    tell("copying and multiplying")
    protocol = ProtocolRun(opened, ceilings_for(opened), repeats=repeats, seed=seed)
    results = []
    for test in tests:
        tell(f"{test.kind}: {test.count} prompts of {test.length} tokens, {test.num_tokens} out")
        results.append({"engine": "deepinfer", "model": opened.facts["name"], **protocol.run(test)})
        emit(results[-1])
    opened.engine.close()
    return {
        "schema": SCHEMA,
        "machine": asdict(describe_machine(opened.device)),
        "model": {**opened.facts, "start_s": start_s},
        "ceilings": asdict(protocol.ceilings),
        "ops": sorted({(c.op, c.provider) for c in opened.engine.op_choices}),
        "results": results,
    }


class ProtocolRun:
    """An engine under test."""

    def __init__(self, opened: Opened, ceilings: Ceilings, *, repeats: int, seed: int) -> None:
        self.ceilings = ceilings
        self._opened, self._engine = opened, opened.engine
        self._repeats = repeats
        self._generator = random.Random(seed)

    def run(self, test: ProtocolTest) -> Result:
        """The figures of a test, or why it cannot be run."""
        runs = {"lat": self._decode, "ttft": self._first_token, "thr": self._throughput}
        try:
            return runs[test.kind](test)
        except (DeepInferError, RuntimeError) as error:
            return {"test": test.kind, **asdict(test), "error": f"{type(error).__name__}: {error}"}

    def _decode(self, test: ProtocolTest) -> Result:
        self._seconds(test, SETTLED_TOKENS)
        firsts = [self._seconds(test, 1) for _ in range(self._repeats)]
        wholes = [self._seconds(test, test.num_tokens) for _ in range(self._repeats)]
        first_s, whole_s = statistics.median(firsts), statistics.median(wholes)
        step_ms = (whole_s - first_s) / (test.num_tokens - 1) * 1e3
        middle = test.num_tokens // 2
        with decoding(self._engine, test.count, context=test.length, num_steps=middle + 2):
            for _ in range(max(0, middle - SETTLED_TOKENS)):
                self._engine.advance()
            with recording(self._engine, keeps_arguments=False) as recorder:
                self._engine.advance()
        return {
            "test": "decode",
            "batch": test.count,
            "inp": test.length,
            "out": test.num_tokens,
            "step_ms": step_ms,
            "tok_s": test.count / step_ms * 1e3,
            "e2e_s": whole_s,
            "prefill_s": first_s,
            "spread": (max(wholes) - min(wholes)) / whole_s,
            **self._roofline(recorder.calls, step_ms),
        }

    def _first_token(self, test: ProtocolTest) -> Result:
        self._seconds(test, 1)
        times = [self._seconds(test, 1) for _ in range(self._repeats)]
        with recording(self._engine, keeps_arguments=False) as recorder:
            self._seconds(test, 1)
        ttft_ms = statistics.median(times) * 1e3
        return {
            "test": "ttft",
            "batch": test.count,
            "inp": test.length,
            "ttft_ms": ttft_ms,
            "best_ms": min(times) * 1e3,
            "tok_s": test.count * test.length / ttft_ms * 1e3,
            **self._roofline(recorder.calls, ttft_ms),
        }

    def _throughput(self, test: ProtocolTest) -> Result:
        self._seconds(test, 2 * SETTLED_TOKENS)
        wall_s = self._seconds(test, test.num_tokens)
        num_out = test.count * test.num_tokens
        return {
            "test": "throughput",
            "n": test.count,
            "inp": test.length,
            "out": test.num_tokens,
            "wall_s": wall_s,
            "out_tok_s": num_out / wall_s,
            "tot_tok_s": (num_out + test.count * test.length) / wall_s,
        }

    def _seconds(self, test: ProtocolTest, num_tokens: int) -> float:
        """That new prompts take, each for so many tokens."""
        engine = self._engine
        vocab_size = engine.info.vocab_size
        prompts = [random_ids(self._generator, test.length, vocab_size) for _ in range(test.count)]
        wait_for(self._opened.device)
        begun = time.perf_counter()
        add_prompts(engine, prompts, num_tokens)
        run_out(engine)
        wait_for(self._opened.device)
        return time.perf_counter() - begun

    def _roofline(self, calls: list[OpCall], took_ms: float) -> Result:
        mem_ms, flop_ms = floor_ms(calls, self.ceilings)
        roof_ms = max(mem_ms, flop_ms)
        gb = sum(call.cost.num_bytes for call in calls) / 1e9
        parts = {"roof_ms": roof_ms, "mem_ms": mem_ms, "flop_ms": flop_ms, "gb": gb}
        return {**parts, "of_roof": roof_ms / took_ms}


def _parse_test(text: str) -> ProtocolTest:
    kind, *numbers = text.strip().split(":")
    is_form = FORMS.get(kind) == len(numbers) and all(n.isdecimal() and int(n) for n in numbers)
    if not is_form or (kind == "lat" and int(numbers[2]) < 2):
        sets = ", ".join(SETS)
        allowed = f"{sets}, or lat:B:IN:OUT, ttft:B:IN, thr:N:IN:OUT separated by commas"
        raise ConfigError("not a test", field="--tests", value=text, allowed=allowed)
    count, length, *rest = map(int, numbers)
    return ProtocolTest(kind, count, length, *(rest or [1]))  # type: ignore[arg-type]  # a key of FORMS
