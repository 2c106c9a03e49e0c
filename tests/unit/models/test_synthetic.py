"""Random weights of true shapes and formats, from a configuration alone."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.models.synthetic import released_entries, write_synthetic_checkpoint
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import TINY_FAMILIES, write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint
from deepinfer_core.weights.cut_config import plan_cut
from deepinfer_core.weights.safetensors_reader import SafetensorsSource


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
def test_names_and_formats_are_those_of_a_quantised_checkpoint(family: str, tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, family, quantize=True)
    config = json.loads((directory / "config.json").read_text())
    assert released_entries(config) == SafetensorsSource(directory).entries


@pytest.mark.parametrize("quantize", [False, True])
def test_a_configuration_alone_becomes_a_checkpoint(quantize: bool, tmp_path: Path) -> None:
    source = write_tiny_checkpoint(tmp_path / "a", "deepseek_v4", quantize=quantize)
    (source / "model.safetensors").unlink()
    cut = partial(plan_cut, num_layers=4, num_experts=4)
    written = write_synthetic_checkpoint(source, tmp_path / "b", cut)
    assert (written.num_layers, written.num_experts) == (4, 4)
    checkpoint = open_checkpoint(tmp_path / "b")
    model = build_model(checkpoint.info, reference_table(), dtype="bfloat16")
    load_weights(model, checkpoint, device="cpu")
    logits = HandRunner(model).feed({0: list(range(3, 40))})[0]
    assert logits.isfinite().all()
    assert 0.5 < logits.std() < 2.0
    assert (tmp_path / "b" / "tokenizer.json").exists()
    again = write_synthetic_checkpoint(source, tmp_path / "c", cut)
    files = [tmp_path / name / "model.safetensors" for name in "bc"]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert again.num_bytes == written.num_bytes


def test_dummy_weights_of_hashed_layers_load(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "deepseek_v4")
    (directory / "model.safetensors").unlink()
    checkpoint = open_checkpoint(directory, load_format="dummy")
    model = build_model(checkpoint.info, reference_table(), dtype="float32")
    load_weights(model, checkpoint, device="cpu")
    assert HandRunner(model).feed({0: [5, 6, 7]})[0].isfinite().all()
    assert model.dtype == torch.float32
