"""Models that keep the codes of their checkpoints compute what those with numbers do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import ConfigError
from deepinfer_core.models.coded import Quantization, keep_stored_codes
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.builtin import reference_kernels
from deepinfer_core.ops.table import OpTable, make_op_table, reference_table
from deepinfer_core.plugin_api import DeviceInfo
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.text.hf_tokenizer import load_hf_tokenizer
from deepinfer_core.weights.checkpoint import open_checkpoint
from safetensors.torch import load_file
from torch import Tensor

PROMPT = list(range(3, 40))
FAMILIES = ["qwen2", "qwen3_moe", "deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_v41"]
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
WIDE = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 128}
"""Sizes at which merged matrices end where blocks of 128 do."""


def load(
    directory: Path,
    quantization: Quantization,
    ops: OpTable | None = None,
    dtype: str = "bfloat16",
    **options: Any,
) -> tuple[Any, list[str]]:
    checkpoint = open_checkpoint(directory, **options)
    ops = ops or reference_table(batch_invariant=True)
    model = build_model(checkpoint.info, ops, dtype=dtype)
    kept = keep_stored_codes(model, checkpoint, ops, quantization)
    tokenizer = load_hf_tokenizer(directory)
    load_weights(model, checkpoint, device="cpu", vocabulary=tokenizer)
    return model, kept


def num_bytes(model: Any) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def logits_of(model: Any) -> Tensor:
    return HandRunner(model).feed({0: PROMPT})[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_codes_give_the_bits_of_numbers(family: str, dtype: str, tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, family, quantize=True)
    numbers, nothing = load(directory, "dequantize", dtype=dtype)
    codes, kept = load(directory, "keep", dtype=dtype)
    assert nothing == []
    assert kept
    assert num_bytes(codes) < num_bytes(numbers)
    assert torch.equal(logits_of(codes), logits_of(numbers))


def test_merged_matrices_keep_codes_where_blocks_end_with_them(tmp_path: Path) -> None:
    narrow = write_tiny_checkpoint(tmp_path / "narrow", "deepseek_v3", quantize=True)
    _, kept = load(narrow, "keep")
    assert "model.layers.0.self_attn.o_proj" in kept
    assert not any(path.endswith(("gate_up_proj", "experts")) for path in kept)
    wide = write_tiny_checkpoint(tmp_path / "wide", "deepseek_v3", quantize=True, **WIDE)
    codes, kept = load(wide, "keep")
    assert {"model.layers.0.mlp.gate_up_proj", "model.layers.2.mlp.experts"} < set(kept)
    assert torch.equal(logits_of(codes), logits_of(load(wide, "dequantize")[0]))


def test_codes_are_the_very_bytes_of_the_file(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "deepseek_v4", quantize=True)
    stored = load_file(directory / "model.safetensors")
    model, _ = load(directory, "keep")
    experts = model.layers[3].ffn.experts
    for expert in (0, 7):
        name = f"layers.3.ffn.experts.{expert}"
        codes = torch.cat([stored[f"{name}.w{i}.weight"] for i in (1, 3)])
        scales = torch.cat([stored[f"{name}.w{i}.scale"].view(torch.uint8) for i in (1, 3)])
        assert torch.equal(experts.w13[expert], codes.view(torch.uint8))
        assert torch.equal(experts.w13_scales[expert], scales)
        down = stored[f"{name}.w2.scale"].view(torch.uint8)
        assert torch.equal(experts.w2_scales[expert], down)
    wq_b, name = model.layers[0].attn.wq_b, "layers.0.attn.wq_b"
    assert torch.equal(wq_b.weight.view(torch.uint8), stored[f"{name}.weight"].view(torch.uint8))
    assert torch.equal(wq_b.scale, stored[f"{name}.scale"].float())


def with_kernel_of_a_plugin(op: str) -> OpTable:
    """A table in which an op is also served by a kernel that goes before core's."""
    own = next(kernel for kernel in reference_kernels() if kernel.op == f"{op}@1")
    kernel = replace(own, provider="acme.codes", priority=20)
    return make_op_table([*reference_kernels(), kernel], device=DeviceInfo(kind="cpu"))


def test_what_auto_keeps_is_what_a_plugin_multiplies(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "deepseek_v4", quantize=True)
    assert load(directory, "auto")[1] == []
    kept = load(directory, "auto", with_kernel_of_a_plugin("moe.coded"))[1]
    assert kept == [f"layers.{layer}.ffn.experts" for layer in range(5)]
    kept = load(directory, "auto", with_kernel_of_a_plugin("gemm.coded"))[1]
    assert "layers.0.attn.wq_b" in kept
    assert not any("experts" in path.split(".")[-1] and "shared" not in path for path in kept)


def test_a_provider_named_for_a_family_need_not_multiply_codes(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama", quantize=True)
    dense = next(kernel for kernel in reference_kernels() if kernel.op == "gemm.dense@1")
    kernels = [*reference_kernels(), replace(dense, provider="acme.dense")]
    ops = make_op_table(kernels, device=DeviceInfo(kind="cpu"), overrides={"gemm.*": "acme.dense"})
    assert load(directory, "auto", ops)[1] == []


@pytest.mark.parametrize(
    ("family", "changes", "allowed"),
    [
        ("deepseek_v3", {}, True),
        ("deepseek_v3", {"activation_scheme": "static"}, False),
        ("deepseek_v41", {}, False),  # whose groups are shorter
    ],
)
def test_rows_may_be_rounded_where_the_model_was_trained_so(
    family: str, changes: dict[str, str], allowed: bool, tmp_path: Path
) -> None:
    directory = write_tiny_checkpoint(tmp_path, family, quantize=True)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] |= changes
    (directory / "config.json").write_text(json.dumps(config))
    model, kept = load(directory, "keep")
    modules = dict(model.named_modules())
    bound = [getattr(modules[path], "gemm", None) or modules[path].experts for path in kept]
    assert bound
    assert {"rounded_rows" in op.problem.features for op in bound} == {allowed}


def test_numbers_stay_numbers(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "deepseek_v4")
    assert load(directory, "keep")[1] == []


def test_random_weights_are_codes_too(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "deepseek_v4", quantize=True)
    (directory / "model.safetensors").unlink()
    model, kept = load(directory, "keep", load_format="dummy")
    assert "layers.0.ffn.experts" in kept
    logits = logits_of(model)
    assert logits.isfinite().all()
    assert 0.5 < logits.std() < 2.0


def test_an_engine_keeps_codes_when_told_to(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "deepseek_v4", quantize=True)
    answers = []
    for quantization in ("keep", "dequantize"):
        options = {"quantization": quantization, "batch_invariant": True, "num_blocks": 40}
        with LLM(str(directory), **options) as llm:
            outputs = llm.generate([PROMPT], GREEDY)
            answers.append(outputs[0].outputs[0].token_ids)
            experts: Any = llm.engine.runner.model.layers[0].ffn.experts
            assert (experts.w13.dtype == torch.uint8) == (quantization == "keep")
    assert answers[0] == answers[1]


def test_an_unknown_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quantization"):
        LLM(str(tmp_path), quantization="fp4")
