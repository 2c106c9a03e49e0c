"""Float32 stays near float64 over hundreds of tokens that build on each other's cache.

The float64 run is the same model: weights, caches and angles are widened, and nothing is made
float32 on the way. It also keeps references from rounding float64 inputs.
"""

from __future__ import annotations

import random

import pytest
import torch
from deepinfer_core.models.layers.rotary import RotaryTable, attention_factor, inverse_frequencies
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.table import reference_table
from deepinfer_core.runtime.batch import LayerCache
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.text.loading import load_tokenizer
from deepinfer_core.weights.checkpoint import open_checkpoint
from torch import Tensor

LENGTH, CHUNK = 360, 45
BOUND = 1e-5
"""Of the largest logit."""


def load(directory):
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, reference_table(), dtype="float32")
    load_weights(model, checkpoint, device="cpu", vocabulary=load_tokenizer(directory))
    return model


def logits_of(runner, ids):
    chunks = [runner.feed({0: ids[at : at + CHUNK]})[0] for at in range(0, len(ids), CHUNK)]
    return torch.cat(chunks)


def widen(model):
    """Make a model one of float64, and give a runner whose caches are."""
    runner = HandRunner(model)
    for module in model._apply(widen_tensor).modules():
        if getattr(module, "dtype", None) is torch.float32:
            module.dtype = torch.float64
        for table in vars(module).values():
            if isinstance(table, RotaryTable):
                table._table = wide_angles(table.config)
    planes = [cache.k_cache.double() for cache in runner.caches]  # keys are values too
    runner.caches = [LayerCache(plane, plane) for plane in planes]
    return runner


def widen_tensor(tensor):
    plain = tensor.to_dense() if tensor.is_mkldnn else tensor  # products may want weights packed
    return plain.double() if plain.is_floating_point() else plain


def wide_angles(config):
    positions = torch.arange(512)
    angles = positions.double()[:, None] * inverse_frequencies(config, positions).double()
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * attention_factor(config)


@pytest.mark.parametrize("family", ["deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_v41"])
def test_float32_stays_near_float64(tmp_path, monkeypatch, family):
    directory = write_tiny_checkpoint(tmp_path, family)
    draw = random.Random(0)
    ids = [draw.randrange(3, 275) for _ in range(LENGTH)]
    found = logits_of(HandRunner(load(directory)), ids)
    to_float32 = Tensor.float
    monkeypatch.setattr(Tensor, "float", lambda x: x if x.dtype is torch.float64 else to_float32(x))
    expected = logits_of(widen(load(directory)), ids)
    assert expected.dtype is torch.float64
    errors = (found - expected).abs().amax(dim=1) / expected.abs().max()
    first, last = errors[:60].max(), errors[-60:].max()
    assert errors.max() < BOUND
    assert last < 4 * first  # rounding of the past does not pile up
    assert torch.equal(found.argmax(dim=1), expected.argmax(dim=1))
