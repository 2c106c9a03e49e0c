"""deepinfer-cpu, kernel by kernel: beside core's references, and beside what memory can deliver.

Operands are larger than the caches where a step's are: weights of 30 layers, caches of 30 layers.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial

import pytest
import torch
from deepinfer_core.bench.machine import read_bandwidth
from deepinfer_core.ops.reference import act, attn, gemm, kv, norm, rope
from deepinfer_core.plugin_api import Problem
from deepinfer_core.testing.cases.attn import make_meta

LAYERS = 30
WIDTH, FFN, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 576, 1536, 9, 3, 64, 16
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
REPEATS = 7


@pytest.fixture
def ours(pytestconfig, monkeypatch):
    monkeypatch.syspath_prepend(str(pytestconfig.rootpath / "plugins" / "deepinfer-cpu" / "src"))
    from deepinfer_cpu import library

    if library.problem() is not None:
        pytest.skip(library.problem())
    from deepinfer_cpu import kernels, weights

    return kernels, weights


def best_us(call: Callable[[], object], times: int = 1) -> float:
    call()
    return min(timeit.repeat(call, number=times, repeat=REPEATS)) / times * 1e6


class Report:
    """Lines and numbers; bytes are what the kernel must read."""

    def __init__(self, gigabytes_per_s: float) -> None:
        self.limit = gigabytes_per_s
        self.results: list[dict[str, object]] = []
        self.lines = ["kernel                              ours us    core us   GB/s  of limit"]

    def add(self, name: str, ours_us: float, core_us: float, num_bytes: int = 0) -> None:
        rate = num_bytes / ours_us / 1e3
        self.results.append(
            {"kernel": name, "us": ours_us, "core_us": core_us, "gigabytes_per_s": rate}
        )
        share = f"{rate:7.1f}{rate / self.limit:10.0%}" if num_bytes else ""
        self.lines.append(f"{name:32}{ours_us:11.1f}{core_us:11.1f}{share}")


def attention(report: Report, kernels: object, num_reqs: int, length: int, query_len: int) -> None:
    blocks = -(-length // BLOCK_SIZE)
    shape = (num_reqs * blocks + 1, LAYERS, 2, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    pool = torch.randn(shape, dtype=torch.bfloat16)
    tables = (torch.randperm(shape[0] - 1) + 1).int().view(num_reqs, blocks)
    requests = [(query_len, length)] * num_reqs
    meta = make_meta(requests, [length] * num_reqs, tables, BLOCK_SIZE, "cpu")
    q = torch.randn(num_reqs * query_len, NUM_HEADS, HEAD_DIM, dtype=torch.bfloat16)

    def each(paged: Callable[..., object], plan: object) -> Callable[[], object]:
        def layers() -> None:
            for layer in range(LAYERS):
                paged(q, pool[:, layer, 0], pool[:, layer, 1], meta, 0.125, plan=plan)

        return layers

    name = f"attn.paged {num_reqs} x {query_len} of {length}"
    core = best_us(each(attn.paged, attn.plan_paged(None, meta))) / LAYERS
    size = 2 * num_reqs * length * NUM_KV_HEADS * HEAD_DIM * 2
    is_decode = query_len == 1
    ours = best_us(each(kernels.paged, None)) / LAYERS
    report.add(name, ours, core, size if is_decode else 0)


def products(report: Report, modules: tuple, name: str, num_tokens: int) -> None:
    kernels, weights = modules
    dtype, problem = getattr(torch, name), Problem("gemm.dense", name)
    plain = [torch.randn(shape).to(dtype) for _ in range(LAYERS) for shape in SHAPES]
    x = {width: torch.randn(num_tokens, width).to(dtype) for width in (WIDTH, FFN)}

    def each(dense: Callable[..., object], laid_out: list) -> Callable[[], object]:
        def layers() -> None:
            for weight, (_, width) in zip(laid_out, SHAPES * LAYERS, strict=True):
                dense(x[width], weight)

        return layers

    ours = best_us(each(kernels.dense, [weights.prepare(problem, w) for w in plain]))
    core = best_us(each(gemm.dense, [gemm.prepare(problem, w) for w in plain]))
    size = sum(weight.nbytes for weight in plain)
    report.add(f"gemm.dense {name} {num_tokens}, layers", ours, core, size)
    head = torch.randn(49152, WIDTH).to(dtype)
    ours, core = (best_us(partial(f, x[WIDTH], head)) for f in (kernels.dense, gemm.dense))
    report.add(f"gemm.dense {name} {num_tokens}, plain", ours, core, head.nbytes)


def light_ops(report: Report, kernels: object, num_tokens: int) -> None:
    x, residual = (torch.randn(num_tokens, WIDTH).bfloat16() for _ in range(2))
    weight, up = torch.randn(WIDTH).bfloat16(), torch.randn(num_tokens, 2 * FFN).bfloat16()
    q = torch.randn(num_tokens, NUM_HEADS + NUM_KV_HEADS, HEAD_DIM).bfloat16()
    positions, table = torch.arange(num_tokens), torch.randn(num_tokens, HEAD_DIM)
    cache = torch.zeros(num_tokens, 2, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM).bfloat16()
    k, slots = q[:, :NUM_KV_HEADS], torch.arange(num_tokens, dtype=torch.int32)
    cases = {
        "norm.rms": (kernels.rms, norm.rms, (x, weight, 1e-5, residual)),
        "act.silu_mul": (kernels.silu_mul, act.silu_mul, (up,)),
        "rope.apply": (kernels.rope, rope.apply, (q, None, positions, table)),
        "kv.store": (kernels.store, kv.store, (k, k, cache[:, 0], cache[:, 1], slots)),
    }
    for name, (mine, core, arguments) in cases.items():
        ours_us, core_us = (best_us(partial(f, *arguments), 200) for f in (mine, core))
        report.add(f"{name} {num_tokens}", ours_us, core_us)


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_cpu_kernels(ours, publish):
    kernels, _ = ours
    report = Report(read_bandwidth() / 1e9)
    with torch.inference_mode():
        for num_tokens in (1, 16):
            light_ops(report, kernels, num_tokens)
        for num_reqs, length, query_len in ((1, 128, 1), (16, 128, 1), (1, 4096, 1), (1, 512, 512)):
            attention(report, kernels, num_reqs, length, query_len)
        for name in ("bfloat16", "float32"):
            for num_tokens in (1, 16, 64):
                products(report, ours, name, num_tokens)
    report.lines.append(f"limit: {report.limit:.1f} GB/s read; torch {torch.__version__}")
    publish("cpu_kernels", report.lines, {"limit": report.limit, "runs": report.results})
