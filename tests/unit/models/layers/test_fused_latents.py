"""A plugin's kernel for the whole way from projected latents to the cache changes no bit."""

import sys
import types

import pytest
import torch
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.builtin import reference_kernels
from deepinfer_core.ops.reference.qkv import latents
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugin_api import Caps, DeviceInfo, KernelSpec
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint

CHUNKS = ({0: [5, 9, 3, 4, 77, 8], 1: [30, 12]}, {0: [6], 1: [11, 2, 40]}, {1: [7], 0: [3]})
FUSED = KernelSpec(
    "attn.latents@1",
    "acme.fused",
    "fused_latents:counted",
    Caps(
        device_kinds=("*",),
        dtypes=("float32",),
        features=frozenset({"interleaved", "strided_cache"}),
    ),
    priority=20,
)


@pytest.fixture
def calls(monkeypatch):
    """Whether each call of the fused kernel had latents of queries."""
    seen = []

    def counted(*args, **kwargs):
        seen.append(kwargs.get("q") is not None)
        return latents(*args, **kwargs)

    module = types.ModuleType("fused_latents")
    module.counted = counted
    monkeypatch.setitem(sys.modules, "fused_latents", module)
    return seen


def logits(directory, *kernels):
    table = make_op_table([*kernels, *reference_kernels()], device=DeviceInfo(kind="cpu"))
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, table, dtype="float32")
    load_weights(model, checkpoint, device="cpu")
    runner = HandRunner(model)
    return [runner.feed(chunks) for chunks in CHUNKS]


@pytest.mark.parametrize("family", ["deepseek_v3", "deepseek_v32"])
def test_logits_are_the_same_bits(family, calls, tmp_path):
    directory = write_tiny_checkpoint(tmp_path, family)
    expected = logits(directory)
    assert calls == []
    found = logits(directory, FUSED)
    assert set(calls) == {True} and len(calls) % len(CHUNKS) == 0
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_queries_without_a_latent_are_left_alone(calls, tmp_path):
    directory = write_tiny_checkpoint(tmp_path, "deepseek_v3", q_lora_rank=None)
    expected = logits(directory)
    found = logits(directory, FUSED)
    assert set(calls) == {False}
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
