"""A plugin's kernel for the whole way from projected heads to the cache changes no bit."""

import sys
import types

import pytest
import torch
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.builtin import reference_kernels
from deepinfer_core.ops.reference.qkv import qkv
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugin_api import Caps, DeviceInfo, KernelSpec
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint

CHUNKS = ({0: [5, 9, 3, 4, 77, 8], 1: [30, 12]}, {0: [6], 1: [11, 2, 40]}, {1: [7], 0: [3]})
OP = "attn.qkv"


@pytest.fixture
def calls(monkeypatch):
    """The layouts that the fused kernel was called with."""
    seen = []

    def counted(*args, **kwargs):
        seen.append("norms" if kwargs.get("q_weight") is not None else "plain")
        return qkv(*args, **kwargs)

    module = types.ModuleType("fused_kernels")
    module.counted = counted
    monkeypatch.setitem(sys.modules, "fused_kernels", module)
    return seen


def fused_kernel(*features):
    caps = Caps(device_kinds=("*",), dtypes=("float32",), features=frozenset(features))
    return KernelSpec(f"{OP}@1", "acme.fused", "fused_kernels:counted", caps, priority=20)


def logits(directory, *kernels):
    """Of every chunk, and the provider of the fused op if it is bound."""
    table = make_op_table([*kernels, *reference_kernels()], device=DeviceInfo(kind="cpu"))
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, table, dtype="float32")
    load_weights(model, checkpoint, device="cpu")
    runner = HandRunner(model)
    providers = {choice.op: choice.provider for choice in table.choices()}
    return [runner.feed(chunks) for chunks in CHUNKS], providers.get(OP)


@pytest.mark.parametrize(("family", "kind"), [("llama", "plain"), ("qwen3", "norms")])
def test_logits_are_the_same_bits(family, kind, calls, tmp_path):
    directory = write_tiny_checkpoint(tmp_path, family)
    expected, provider = logits(directory)
    assert provider is None and calls == []
    found, provider = logits(directory, fused_kernel("qk_norm", "strided_cache"))
    assert provider == "acme.fused" and set(calls) == {kind}
    assert len(calls) % len(CHUNKS) == 0
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_a_kernel_without_norms_serves_models_without_norms_only(calls, tmp_path):
    for family, provider in (("llama", "acme.fused"), ("qwen3", None)):
        directory = write_tiny_checkpoint(tmp_path / family, family)
        assert logits(directory, fused_kernel("strided_cache"))[1] == provider
