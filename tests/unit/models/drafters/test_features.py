"""What targets show their drafters, and that showing it changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.drafters.interface import DraftTarget
from deepinfer_core.models.interface import ReadsVocabulary
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import TINY_DRAFTERS, write_tiny_checkpoint
from deepinfer_core.text.loading import load_tokenizer
from deepinfer_core.weights.checkpoint import open_checkpoint
from torch import Tensor

IDS = list(range(30, 60))


def load(directory: Path, name: str) -> CausalModel:
    family, fields = TINY_DRAFTERS[name]
    checkpoint = open_checkpoint(write_tiny_checkpoint(directory, family, **fields))
    model = build_model(checkpoint.info, reference_table(), dtype="float32")
    load_weights(model, checkpoint, device="cpu")
    if isinstance(model, ReadsVocabulary):
        model.read_vocabulary(load_tokenizer(directory))
    return model


def test_who_may_have_a_drafter(tmp_path: Path) -> None:
    assert isinstance(load(tmp_path / "a", "mtp_v4"), DraftTarget)
    info = open_checkpoint(write_tiny_checkpoint(tmp_path / "b", "llama")).info
    assert not isinstance(build_model(info, reference_table(), dtype="float32"), DraftTarget)


@pytest.mark.parametrize("name", TINY_DRAFTERS)
def test_hidden_states_are_those_of_the_forward(name: str, tmp_path: Path) -> None:
    model = load(tmp_path, name)
    plain = model.forward(HandRunner(model).next_batch({0: IDS}))
    hidden_states, _ = model.forward_with_features(HandRunner(model).next_batch({0: IDS}))
    assert torch.equal(hidden_states, plain)


@pytest.mark.parametrize("name", TINY_DRAFTERS)
def test_features_are_what_goes_through_the_layers(name: str, tmp_path: Path) -> None:
    model = load(tmp_path, name)
    layers = model.model.layers if name in ("mtp_v3", "mtp_v32") else model.layers
    before: list[Tensor] = []
    behind: list[Tensor] = []
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, args: before.append(args[0]))
        layer.register_forward_hook(lambda _, args, result: behind.append(result))
    hidden_states, features = model.forward_with_features(HandRunner(model).next_batch({0: IDS}))
    if name in ("mtp_v3", "mtp_v32"):
        assert torch.equal(features, hidden_states)
    elif name == "mtp_v4":
        assert torch.equal(features, behind[-1])
    else:
        streams = behind if name == "dspark_v4" else before
        means = [streams[i].mean(dim=1) for i in model.config.dspark.target_layers]
        torch.testing.assert_close(features, torch.stack(means, dim=1))


def test_the_memory_of_v41_speaks_before_its_features_are_taken(tmp_path: Path) -> None:
    """Layer 3 has a memory and is read: what enters it is not what left layer 2."""
    model = load(tmp_path, "dspark_v41")
    behind: list[Tensor] = []
    model.layers[2].register_forward_hook(lambda _, args, result: behind.append(result[0]))
    _, features = model.forward_with_features(HandRunner(model).next_batch({0: IDS}))
    assert model.config.dspark.target_layers[0] == 3
    assert (features[:, 0] - behind[0].mean(dim=1)).abs().max() > 0.01


def test_features_of_a_tail_stand_where_its_tokens_do(tmp_path: Path) -> None:
    """Behind its last source a model may compute the last tokens of each request alone."""
    family, fields = TINY_DRAFTERS["dspark_v41"]
    checkpoint = open_checkpoint(write_tiny_checkpoint(tmp_path, family, **fields))
    ops = reference_table()
    model = build_model(checkpoint.info, ops, dtype="float32", decoder_replay=True)
    load_weights(model, checkpoint, device="cpu", vocabulary=load_tokenizer(tmp_path))
    before: list[Tensor] = []
    model.layers[7].register_forward_pre_hook(lambda _, args: before.append(args[0]))
    batch = HandRunner(model).next_batch({0: IDS, 1: IDS[:5]})
    _, features = model.forward_with_features(batch)
    window = model.config.window_size
    kept = [*range(len(IDS) - window, len(IDS)), *range(len(IDS), len(IDS) + 5)]
    torch.testing.assert_close(features[kept, 2], before[0].mean(dim=1))
    assert len(features) == len(IDS) + 5
