"""`python -m deepinfer_cuda.tune`: try launch configurations on this GPU and write down the best.

Every candidate runs on random data, with a cold cache, and must give what the configuration that
stands gives. The table goes to `deepinfer_cuda/tuning/`, where the next process finds it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.plugin_api import Problem
from torch import Tensor

from deepinfer_cuda.heuristics_attention import decode_launch
from deepinfer_cuda.kernels import paged
from deepinfer_cuda.kernels.limits import shared_bytes
from deepinfer_cuda.tuned import DIRECTORY, forced

MAX_ERROR = 2e-2
"""Of a candidate's result, relative, by norm: another order of the same sums."""
MIN_GAIN = 0.02
"""What a candidate must win for the table to have it."""
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """One shape to tune."""

    kernel: str
    shape: Fields
    """The arguments of the function of shapes."""
    candidates: list[Fields]
    run: Callable[[], Tensor]
    """With the configuration that is in force."""


@dataclass(frozen=True, slots=True)
class Best:
    """What came of a trial."""

    kernel: str
    shape: Fields
    use: Fields
    """Empty: nothing beats what stands."""
    microseconds: float
    standing_microseconds: float


def search(trial: Trial, measure: Callable[[Callable[[], Tensor]], float]) -> Best:
    """Measure all candidates of a trial.

    Args:
        measure: microseconds of a run.
    """
    right = trial.run()
    standing = measure(trial.run)
    best: tuple[float, Fields] = (standing * (1 - MIN_GAIN), {})
    for fields in trial.candidates:
        with forced(trial.kernel, fields):
            try:
                if error_of(trial.run(), right) > MAX_ERROR:
                    continue
                best = min(best, (measure(trial.run), fields), key=lambda each: each[0])
            except (triton.runtime.errors.OutOfResources, triton.CompilationError):
                continue  # more shared memory or registers than the device has
    took = best[0] if best[1] else standing
    return Best(trial.kernel, trial.shape, best[1], took, standing)


def error_of(found: Tensor, right: Tensor) -> float:
    """Relative, by norm."""
    difference = (found.double() - right.double()).norm() / right.double().norm()
    return float(difference)


def write_table(results: Iterable[Best], path: Path, facts: Mapping[str, Any]) -> None:
    """Write what won as TOML; what nothing beat is left out."""
    lines = [f"{name} = {_toml(value)}" for name, value in facts.items()]
    for best in results:
        if best.use:
            lines += ["", "[[launch]]", *(f"{k} = {_toml(v)}" for k, v in asdict(best).items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + " }"
    if isinstance(value, float):
        return f"{value:.2f}"
    return json.dumps(value)  # words, numbers and booleans are written alike


def decode_trials(options: argparse.Namespace) -> Iterator[Trial]:
    """Single queries of `attn.paged`, by number of requests."""
    for batch in options.sizes:
        shape: Fields = {
            "num_requests": batch,
            "num_kv_heads": options.kv_heads,
            "group": options.heads // options.kv_heads,
            "head_dim": options.head_dim,
            "dtype": options.dtype,
            "shared_bytes": _shared_bytes(),
        }
        stands = decode_launch(**shape)
        splits = sorted({max(1, stands.num_splits * n // 4) for n in (2, 3, 4, 6, 8)})
        tokens = [n for n in (stands.tokens // 2, stands.tokens, 2 * stands.tokens) if n]
        candidates: list[Fields] = [
            {"num_splits": s, "tokens": t, "num_warps": w, "num_stages": n}
            for s, t, w, n in product(splits, tokens, (1, 2, 4), (2, 3, 4, 5))
        ]
        run = _attention(options, [1] * batch, [options.context] * batch)
        yield Trial("decode_launch", shape, candidates, run)


def chunk_trials(options: argparse.Namespace) -> Iterator[Trial]:
    """Chunks of `attn.paged`. Their configuration knows no length, so it is tuned at one."""
    group = options.heads // options.kv_heads
    shape: Fields = {
        "group": group,
        "head_dim": options.head_dim,
        "dtype": options.dtype,
        "shared_bytes": _shared_bytes(),
    }
    candidates: list[Fields] = [
        {"rows": r, "queries_per_tile": r // group, "keys": k, "num_warps": w, "num_stages": n}
        for r, k, w, n in product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))
        if r >= group
    ]
    # Behind a history: without one, long chunks do not go through this kernel.
    length = options.sizes[0]
    yield Trial("prefill_launch", shape, candidates, _attention(options, [length], [2 * length]))


TRIALS: dict[str, Callable[[argparse.Namespace], Iterator[Trial]]] = {
    "decode": decode_trials,
    "chunks": chunk_trials,
}


def _shared_bytes() -> int:
    return shared_bytes(torch.device("cuda", torch.cuda.current_device()))


def _attention(
    options: argparse.Namespace, query_lens: list[int], seq_lens: list[int]
) -> Callable[[], Tensor]:
    """A call of `attn.paged` over a cache whose pages lie in random order."""
    size, dtype = options.block_size, getattr(torch, options.dtype)
    counts = [-(-length // size) for length in seq_lens]
    num_pages = sum(counts) + 1
    order = (torch.randperm(num_pages - 1) + 1).int()
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for row, pages in enumerate(torch.split_with_sizes(order, counts)):
        tables[row, : len(pages)] = pages
    pairs = zip(query_lens, seq_lens, strict=True)
    positions = torch.cat([torch.arange(end - count, end) for count, end in pairs])
    meta = AttentionMeta(
        cu_seqlens_q=torch.tensor([0, *query_lens]).cumsum(0).int().cuda(),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32).cuda(),
        block_tables=tables.cuda(),
        slot_mapping=torch.full((sum(query_lens),), -1, dtype=torch.int32).cuda(),
        positions=positions.cuda(),
        block_size=size,
        query_lens=query_lens,
        seq_len_bounds=seq_lens,
    )
    cache_shape = (num_pages, 2, size, options.kv_heads, options.head_dim)
    pool = torch.randn(cache_shape, device="cuda", dtype=dtype)
    q_shape = (sum(query_lens), options.heads, options.head_dim)
    q = torch.randn(q_shape, device="cuda", dtype=dtype)
    sizes = {"head_dim": options.head_dim, "num_kv_heads": options.kv_heads}
    shape = tuple(sorted((sizes | {"num_q_heads": options.heads}).items()))
    problem = Problem("attn.paged", options.dtype, shape)

    def run() -> Tensor:
        plan = paged.plan(problem, meta)
        scale = options.head_dim**-0.5
        result = paged.paged(q, pool[:, 0], pool[:, 1], meta, scale, plan=plan)
        assert isinstance(result, Tensor)
        return result

    return run


def microseconds(run: Callable[[], Tensor]) -> float:
    """Of a run, the median; the L2 cache is emptied before each."""
    took: float = triton.testing.do_bench(run, warmup=10, rep=60, return_mode="median")
    return took * 1e3


def _facts(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "device": torch.cuda.get_device_name(),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": done.stdout.strip() or "not known",
        "command": " ".join(["python -m deepinfer_cuda.tune", *command]),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def parse(words: list[str]) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m deepinfer_cuda.tune", description=__doc__)
    parser.add_argument("what", choices=sorted(TRIALS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 32, 128],
                        help="requests of a decode step, or tokens of a chunk")  # fmt: skip
    parser.add_argument("--context", type=int, default=1056, help="tokens of each request")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--output", type=Path, default=DIRECTORY, help="directory of the table")
    return parser.parse_args(words)


def main(words: list[str]) -> None:
    options = parse(words)
    results = []
    for trial in TRIALS[options.what](options):
        results.append(search(trial, microseconds))
        best = results[-1]
        took = f"{best.microseconds:.1f} us, was {best.standing_microseconds:.1f}"
        print(best.shape, best.use or "as it stands", took, flush=True)
    facts = _facts(words)
    name = "-".join([*facts["device"].lower().split(), options.what])
    write_table(results, options.output / f"{name}.toml", facts)


if __name__ == "__main__":
    main(sys.argv[1:])
