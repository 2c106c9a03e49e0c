"""`run_bench`: load a model, measure, and give one report with everything that it depends on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deepinfer_core.bench.cost import weight_bytes
from deepinfer_core.bench.gemms import gemm_ceiling
from deepinfer_core.bench.latency import measure_latency
from deepinfer_core.bench.machine import LARGE_BYTES, describe_machine, read_bandwidth
from deepinfer_core.bench.speed import Bounds, greedy, random_prompts
from deepinfer_core.bench.throughput import measure_throughput
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError
from deepinfer_core.llm import LLM

SCHEMA = 1
"""Of the report; raised when a field changes its meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to measure. An empty list leaves that benchmark out."""

    prompt_lens: Sequence[int] = (128, 512, 2048)
    """Latency: one prompt at a time, of these lengths."""
    concurrency: Sequence[int] = (1, 4, 16, 64)
    """Throughput: so many requests at once."""
    prompt_len: int = 128
    """Throughput: tokens of each prompt."""
    output_len: int = 32
    """Tokens drawn for each prompt."""
    repeats: int = 3
    seed: int = 0


def run_bench(
    config: EngineConfig, options: BenchOptions, *, tell: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """Load the model and measure it. Blocks for as long as that takes.

    Args:
        tell: called with what is running now.

    Returns:
        Plain JSON values: `machine`, `model`, `options`, `ops`, `bandwidth`, `gemms`, `latency`,
        `throughput`, and `notes` on what was left out.

    Raises:
        ConfigError: nothing of what was asked for fits the model or the configuration.
        ModelLoadError, PlatformError, PluginError: the model cannot be loaded.
    """
    tell(f"loading {config.model.model}")
    with LLM(config=config) as llm:
        model: Any = llm.engine.runner.model
        prompt_lens, concurrency, notes = _fitting(options, llm)
        num_bytes = weight_bytes(model, 1)
        device = next(model.parameters()).device
        tell("reading memory")
        bandwidth = _read_bandwidths(num_bytes, device)
        tell("GEMMs alone")
        gemms = gemm_ceiling(model, sorted({1, *concurrency}))
        bounds = Bounds(bandwidth["weights_bytes_per_s"], gemms)
        warm_up = random_prompts(random.Random(options.seed), 1, 16, llm.engine.info.vocab_size)
        llm.generate(warm_up, greedy(4), on_error="raise")
        latency = measure_latency(
            llm,
            bounds,
            prompt_lens=prompt_lens,
            output_len=options.output_len,
            repeats=options.repeats,
            seed=options.seed,
            tell=tell,
        )
        throughput = measure_throughput(
            llm,
            bounds,
            concurrency=concurrency,
            prompt_len=options.prompt_len,
            output_len=options.output_len,
            repeats=options.repeats,
            seed=options.seed + 1,
            tell=tell,
        )
        return {
            "schema": SCHEMA,
            "machine": asdict(describe_machine(device)),
            "model": _describe_model(llm),
            "options": asdict(options),
            "ops": [
                {"op": c.op, "role": c.problem.role, "provider": c.provider}
                for c in llm.engine.op_choices
            ],
            "bandwidth": bandwidth,
            "gemms": [asdict(speed) for speed in gemms.values()],
            "latency": [asdict(result) for result in latency],
            "throughput": [asdict(result) for result in throughput],
            "notes": notes,
        }


def _read_bandwidths(num_weight_bytes: int, device: Any) -> dict[str, float]:
    return {
        "large_bytes": LARGE_BYTES,
        "large_bytes_per_s": read_bandwidth(LARGE_BYTES, device=device),
        "weights_bytes": num_weight_bytes,
        "weights_bytes_per_s": read_bandwidth(num_weight_bytes, device=device),
    }


def _fitting(options: BenchOptions, llm: LLM) -> tuple[list[int], list[int], list[str]]:
    """What of the options this engine can run, and in words what it cannot."""
    longest = llm.engine.limits.max_model_len - options.output_len
    most = llm.config.scheduler.max_num_seqs
    prompt_lens = [length for length in options.prompt_lens if length <= longest]
    concurrency = [count for count in options.concurrency if count <= most]
    notes = [
        f"prompts of {length} tokens left out: the model takes {longest} and {options.output_len} "
        "of output"
        for length in options.prompt_lens
        if length > longest
    ] + [
        f"{count} requests left out: max_num_seqs is {most}"
        for count in options.concurrency
        if count > most
    ]
    if options.prompt_len > longest and concurrency:
        raise ConfigError(
            "longer than the model allows beside the output",
            field="prompt_len",
            value=options.prompt_len,
            allowed=f"1 to {longest}",
        )
    if not prompt_lens and not concurrency:
        raise ConfigError(f"nothing is left to measure: {'; '.join(notes) or 'no sizes given'}")
    return prompt_lens, concurrency, notes


def _describe_model(llm: LLM) -> dict[str, Any]:
    info, model = llm.engine.info, llm.engine.runner.model
    return {
        "name": llm.model_name,
        "architecture": info.architecture,
        "dtype": str(model.dtype).removeprefix("torch."),
        "num_layers": info.config.num_layers,
        "vocab_size": info.vocab_size,
        "kv_bytes_per_token": sum(layer.bytes_per_token for layer in model.layer_kv()),
        "batch_invariant": llm.config.device.batch_invariant,
    }
