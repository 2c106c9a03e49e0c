"""Triton's interpreter runs the kernels on the CPU: the same source, no GPU.

Some cases of each op, as a program takes milliseconds there; a GPU runs all of them. No bfloat16:
the interpreter cuts it off instead of rounding it, and multiplies its bit patterns in `tl.dot`.
"""

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")
PROGRAM = Path(__file__).parent / "interpret.py"
OPS = {"norm.rms", "act.silu_mul", "rope.apply", "kv.store", "attn.qkv", "attn.paged"}
LATENT = {"attn.mla", "attn.mla_prefill", "attn.latents", "gemm.batched"}
MOE = {"moe.route", "moe.experts", "moe.coded"}
PRODUCTS = {"gemm.dense", "gemm.coded", "gemm.scaled", "quant.act"}
SAMPLING = {"sample.draw", "sample.logprobs", "sample.mask", "sample.penalties", "sample.stages"}


@pytest.fixture(scope="module")
def found(run_program):
    """What the program printed: outcomes of checks, and tokens of models."""
    return json.loads(run_program(PROGRAM, TRITON_INTERPRET="1"))


def test_kernels_agree_with_the_references(found):
    checks = found["checks"]
    wrong = {name: message for name, (_, _, outcome, message) in checks.items() if message}
    assert wrong == {}
    assert {outcome for _, _, outcome, _ in checks.values()} == {"passed"}
    tried = {(op, dtype) for op, dtype, _, _ in checks.values()}
    expected = {(op, "float32") for op in SAMPLING}
    for op in OPS | LATENT | MOE | PRODUCTS:
        expected |= {(op, "float32"), (op, "float16")}
    assert tried == expected - {("gemm.scaled", "float32")}


@pytest.mark.parametrize(
    ("family", "ops"), [("llama", OPS), ("qwen3", OPS), ("deepseek_v3", LATENT)]
)
def test_a_model_says_the_same_through_them(found, family, ops):
    expected, tokens, providers = found["models"][family]
    assert tokens == expected and all(tokens)
    assert ops <= {op for op, provider in providers.items() if provider == "cuda.triton"}
