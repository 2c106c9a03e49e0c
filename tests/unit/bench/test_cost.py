"""Bytes of a step, counted by hand."""

import pytest
import torch
from deepinfer_core.bench.cost import kv_bytes, weight_bytes
from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.tiny import tiny_config


def build(family, **overrides):
    config = tiny_config(family, **overrides)
    model_class = ModelRegistry().resolve(config["architectures"][0])
    with torch.device("meta"):
        parsed = model_class.read_config(RawConfig(config, "test"))
        return model_class(parsed, reference_table(), dtype="bfloat16")


def num_bytes(model):
    return sum(p.numel() for p in model.parameters()) * 2


def test_an_embedding_beside_a_head_counts_by_its_rows():
    model = build("llama")
    assert weight_bytes(model, 3) == num_bytes(model) - (320 - 3) * 64 * 2
    assert weight_bytes(model, 1000) == num_bytes(model)


def test_a_tied_embedding_counts_as_the_head():
    model = build("qwen3")
    assert weight_bytes(model, 1) == num_bytes(model)


def test_experts_count_as_far_as_tokens_reach():
    """8 experts of 3 * 48 * 64 numbers in two of three layers, 2 for each token."""
    model = build("qwen3_moe")
    embedding = (320 - 1) * 64 * 2
    assert weight_bytes(model, 1) == num_bytes(model) - embedding - 2 * 6 * 3 * 48 * 64 * 2
    embedding = (320 - 4) * 64 * 2
    assert weight_bytes(model, 4) == num_bytes(model) - embedding


@pytest.mark.parametrize(("seq_lens", "tokens"), [([1], 1 + 1), ([100], 100 + 24), ([10, 30], 74)])
def test_kv_of_a_window_ends_at_the_window(seq_lens, tokens):
    layers = [LayerKV("full", 2, 16, 2), LayerKV("window", 2, 16, 2, 24)]
    assert kv_bytes(layers, seq_lens) == tokens * 2 * 2 * 16 * 2
