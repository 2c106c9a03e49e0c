"""Measures tiny models at contexts of up to a million tokens: time per step, and bytes of cache.

    python scripts/bench_context.py OUTPUT.json PLOT.svg [FAMILY...]

Measures the families named, or all; what the output holds of others stays. Long prompts are
computed by the engine in chunks. The longest contexts are not: the engine schedules them as ever,
so that blocks, windows and tables are those of a real request, but the forward is left out and
writes random rows; then some tokens are decoded for good. Each family runs in a process of its
own, whose peak memory is noted.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from deepinfer_core.bench.machine import describe_machine
from deepinfer_core.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from deepinfer_core.engine import Engine
from deepinfer_core.kv.layout import make_layout
from deepinfer_core.models.decoder_config import DecoderConfig
from deepinfer_core.models.deepseek_v4_config import V4Config
from deepinfer_core.models.deepseek_v41_config import V41Config
from deepinfer_core.runtime.batch import ForwardBatch
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from torch import Tensor


@dataclass(frozen=True)
class Family:
    """What is changed of a tiny configuration, so that families compare: six layers each."""

    title: str
    changes: dict[str, Any]
    prompt_len: int = 65536


SPARSE = {"index_n_heads": 4, "index_topk": 64, "head_dim": 32, "sliding_window": 24}
FAMILIES = {
    "deepseek_v41": Family(
        "V4.1: rows of 2 and of 1 token, shared by three layers each",
        SPARSE
        | {
            "compress_ratios": [2, 2, 2, 1, 1, 1],
            "kv_source_layer_ids": [0, 3],
            "index_source_layer_ids": [0, 3, 4],
            "candidate_source_layer_id": 3,
            "candidate_topk_blocks": 64,
            "candidate_block_size": 8,
        },
    ),
    "deepseek_v4": Family(
        "V4: rows of 4 and of 128 tokens", SPARSE | {"compress_ratios": [0, 4, 128, 4, 128, 4]}
    ),
    "deepseek_v3": Family("V3: a row per token and layer", {}, prompt_len=16384),
}
MAX_POSITION = 2**20
CHUNK = 512
CONTEXTS = (1024, 4096, 16384, 65536, 262144, MAX_POSITION - 64)
NUM_TOKENS = 24
"""Decoded at each context; the quickest step counts."""
SKIPPED_CHUNK = 8192
"""Tokens of a step whose forward is left out."""
NUM_BLOCKS = 70_000
"""Of pools; the widest model needs one for 16 tokens."""
BLOCK_SIZE, FLOAT_BYTES = 16, 4


def main(json_path: Path, plot_path: Path, families: list[str]) -> None:
    """Measure families and write the report and its plot."""
    found = json.loads(json_path.read_text())["families"] if json_path.exists() else {}
    spawn = multiprocessing.get_context("spawn")
    for family in families or FAMILIES:
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            found[family] = pool.submit(measure, family).result()
    ordered = {family: found[family] for family in FAMILIES if family in found}
    report = {"machine": asdict(describe_machine()), "chunk": CHUNK, "families": ordered}
    json_path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    draw(report, plot_path)


def measure(family: str) -> dict[str, Any]:
    """One family: a real prompt, then tokens at each context. Blocks for minutes."""
    torch.set_num_threads(1)
    asked = FAMILIES[family]
    with tempfile.TemporaryDirectory() as directory:
        sizes = {"max_position_embeddings": MAX_POSITION, "num_hidden_layers": 6}
        write_tiny_checkpoint(directory, family, **sizes | asked.changes)
        prefill = measure_prefill(make_engine(directory, CHUNK), asked.prompt_len)
        print(family, f"{asked.prompt_len} tokens: {prefill['total_s']:.1f} s", flush=True)
        engine = make_engine(directory, SKIPPED_CHUNK)
    decode = []
    for context in CONTEXTS:
        decode.append(measure_decode(engine, context))
        print(family, decode[-1], flush=True)
    return {"prefill": prefill, "decode": decode}


def make_engine(directory: str, chunk: int) -> Engine:
    """An engine for one request of any length; blocks that nobody writes take no memory."""
    config = EngineConfig(
        model=ModelConfig(model=directory),
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, prefix_caching=False),
        scheduler=SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=chunk, overlap=False),
        device=DeviceConfig(num_threads=1),
    )
    return Engine.from_config(config)


def measure_prefill(engine: Engine, prompt_len: int) -> dict[str, Any]:
    """The steps of one prompt: the first token of each, and its time."""
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(3, 300, (prompt_len,), generator=generator).tolist()
    engine.add(prompt, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    steps = []
    while engine.has_unfinished:
        steps.append(round(timed_step(engine) * 1e3, 2))
    return {
        "steps_ms": steps,
        "total_s": round(sum(steps) / 1e3, 1),
        "peak_rss_mib": peak_rss_mib(),
    }


def measure_decode(engine: Engine, context: int) -> dict[str, Any]:
    """Tokens decoded behind a context that was scheduled but never computed."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    (request,) = engine.add([7] * context, params)
    model: Any = engine.runner.model
    engine.runner.model = Idle(model)
    while not request.num_output_tokens:
        engine.step()
    engine.runner.model = model
    engine.step()  # blocks that leave a window are given up, tables of angles grow
    layout, stats = make_layout(model.layer_kv(), block_size=BLOCK_SIZE), engine.metrics()
    steps = []
    while engine.has_unfinished:
        steps.append(timed_step(engine) * 1e3)
    return {
        "context": context,
        "step_ms": round(min(steps), 2),
        "steps_ms": [round(step, 2) for step in steps],
        "held_bytes": (stats["num_blocks"] - stats["num_free_blocks"]) * layout.page_bytes,
        "read_bytes": bytes_read(model.config, context),
        "peak_rss_mib": peak_rss_mib(),
    }


class Idle:
    """Stands in for a model: writes random rows where it would have written its own."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, C] of zeros."""
        for index in range(len(batch.attention.caches)):
            meta, cache = batch.attention.of_cache(index)
            blocks = (meta.slot_mapping // meta.block_size).unique().long()
            shape = (len(blocks), *cache.k_cache.shape[1:])
            cache.k_cache[blocks] = torch.randn(shape, dtype=cache.k_cache.dtype)
        return torch.zeros(len(batch.input_ids), self.model.config.hidden_size)


def bytes_read(config: DecoderConfig | V4Config, context: int) -> int:
    """Of the cache, that the next token must read; groups that it completes are left out."""
    if isinstance(config, DecoderConfig):
        latent, indexer = config.latent, config.indexer
        assert latent is not None
        num_rows = config.num_layers * (min(indexer.top_k, context) if indexer else context)
        num_keys = config.num_layers * context if indexer else 0
        width = latent.row_dim
    else:
        indexer, width = config.indexer, config.head_dim
        num_rows = config.num_layers * min(config.window_size, context)
        num_keys = 0
        for layer, ratio in enumerate(config.compress_ratios):
            if ratio:
                visible = context // ratio
                scanned = keys_scanned(config, layer, visible)
                is_chosen = isinstance(config, V41Config) or scanned > 0
                num_rows += min(indexer.top_k, visible) if is_chosen else visible
                num_keys += scanned
    key_width = indexer.head_dim if indexer else 0
    return FLOAT_BYTES * (num_rows * width + num_keys * key_width)


def keys_scanned(config: V4Config, layer: int, visible: int) -> int:
    """Index keys that a layer compares: of V4 where a row is of 4 tokens, of V4.1 by its roles."""
    if not isinstance(config, V41Config):
        return visible if config.compress_ratios[layer] == 4 else 0
    if layer not in config.index_sources:
        return 0
    found = config.candidates
    if found is None or layer <= found.source_layer:
        return visible
    return min(visible, found.num_blocks * found.rows_per_block)


def timed_step(engine: Engine) -> float:
    """Seconds of one step."""
    begun = time.perf_counter()
    engine.step()
    return time.perf_counter() - begun


def peak_rss_mib() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 2**20


def draw(report: dict[str, Any], path: Path) -> None:
    """Step time, cache and the chunks of the prompt, against the context."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # optional: plot
    from matplotlib.figure import Figure  # optional: plot

    figure = Figure(figsize=(13, 4.6), layout="constrained")
    FigureCanvasSVG(figure)
    time_axes, bytes_axes, prompt_axes = figure.subplots(1, 3)
    for index, (family, found) in enumerate(report["families"].items()):
        contexts = [entry["context"] for entry in found["decode"]]
        style = {"color": f"C{index}", "label": FAMILIES[family].title}
        time_axes.plot(contexts, [e["step_ms"] for e in found["decode"]], "o-", **style)
        bytes_axes.plot(contexts, [e["held_bytes"] / 2**20 for e in found["decode"]], "o-", **style)
        read = [entry["read_bytes"] / 2**20 for entry in found["decode"]]
        bytes_axes.plot(contexts, read, ":", color=f"C{index}")
        steps = found["prefill"]["steps_ms"]
        ends = [report["chunk"] * (number + 1) for number in range(len(steps))]
        prompt_axes.plot(ends, steps, color=f"C{index}", linewidth=0.8)
    for axes in (time_axes, bytes_axes):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    time_axes.set(xlabel="context in tokens", ylabel="ms", title="One token")
    bytes_axes.set(xlabel="context in tokens", ylabel="MiB", title="Cache: held, and read (dotted)")
    prompt_axes.set(xlabel="tokens before", ylabel="ms", title="A chunk of a long prompt")
    prompt_axes.set_ylim(bottom=0)
    figure.legend(*time_axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    machine = report["machine"]
    figure.suptitle(f"Tiny models, float32, {machine['cpu']}, one thread", fontsize=10)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) < 3 or not FAMILIES.keys() >= set(sys.argv[3:]):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
