"""What `batch_invariant` costs: the protocol without it and with it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

from deepinfer_core.bench.protocol import ProtocolTest, Result, run_protocol
from deepinfer_core.config import EngineConfig
from deepinfer_core.plugins import PluginHost

SCHEMA = "deepinfer-invariance-cost/1"
FIGURES = {"decode": "step_ms", "ttft": "ttft_ms", "throughput": "wall_s"}
"""What is compared of each kind of test; less is better."""
KEYS = ("test", "batch", "n", "inp", "out")
"""What tells tests apart."""


def measure_invariance(
    config: EngineConfig,
    tests: Iterable[ProtocolTest],
    *,
    repeats: int = 3,
    seed: int = 0,
    host: PluginHost | None = None,
    tell: Callable[[str], None] = lambda what: None,
    emit: Callable[[Result], None] = lambda result: None,
) -> dict[str, Any]:
    """Load a model twice and run the same tests. Arguments as those of `run_protocol`.

    Returns:
        Plain JSON values: both reports, and `costs`: of each test that could be run both ways its
        name and sizes, `plain`, `invariant` and `ratio`.

    Raises:
        ConfigError, ModelLoadError, PlatformError, PluginError: the model cannot be loaded.
    """
    wanted, reports = list(tests), {}
    for name, is_invariant in (("plain", False), ("invariant", True)):
        tree = config.model_dump()
        tree["device"]["batch_invariant"] = is_invariant

        def mark(result: Result, mode: str = name) -> None:
            emit({**result, "mode": mode})

        reports[name] = run_protocol(
            EngineConfig.from_tree(tree),
            wanted,
            repeats=repeats,
            seed=seed,
            host=host,
            tell=tell,
            emit=mark,
        )
        gc.collect()  # the second model wants the memory of the first
    pairs = zip(reports["plain"]["results"], reports["invariant"]["results"], strict=True)
    return {"schema": SCHEMA, "costs": [_cost(*pair) for pair in pairs if _ran(*pair)], **reports}


def _ran(*results: Result) -> bool:
    return all("error" not in result for result in results)


def _cost(plain: Result, invariant: Result) -> Result:
    figure = FIGURES[plain["test"]]
    cost: Result = {name: plain[name] for name in KEYS if name in plain}
    cost |= {"figure": figure, "plain": plain[figure], "invariant": invariant[figure]}
    return {**cost, "ratio": cost["invariant"] / cost["plain"]}
