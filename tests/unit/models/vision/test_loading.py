"""The tower's tensors are wanted where the configuration has a tower, all of them and no others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.interface import tower_of
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.models.vision.preprocess import prepare_image
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.testing.tiny_v41 import FOUR_LAYERS, TINY_VISION
from deepinfer_core.weights.checkpoint import open_checkpoint
from safetensors.torch import load_file, save_file

SHAPE = (24, 36, 3)
FILE = "model.safetensors"


def load(path: Path) -> CausalModel:
    checkpoint = open_checkpoint(path)
    model = build_model(checkpoint.info, reference_table(), dtype="float32")
    load_weights(model, checkpoint, device="cpu")
    return model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path, "deepseek_v41", vision_config=TINY_VISION, **FOUR_LAYERS)


@pytest.mark.parametrize(("num_layers", "quantize"), [(0, False), (2, False), (2, True)])
def test_a_tower_of_any_depth_loads(tmp_path: Path, num_layers: int, quantize: bool) -> None:
    vision = TINY_VISION | {"num_hidden_layers": num_layers}
    path = write_tiny_checkpoint(
        tmp_path, "deepseek_v41", vision_config=vision, quantize=quantize, **FOUR_LAYERS
    )
    names = [n for n in load_file(path / FILE) if n.startswith(("vision.", "aligner.", "image_"))]
    assert len(names) == 10 + 8 * num_layers
    tower = tower_of(load(path))
    assert tower is not None
    pixels = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)
    image = prepare_image(pixels, tower.config)
    rows = tower(torch.tensor(image.pixels))
    assert rows.shape == (image.num_tokens, 64)
    assert rows.isfinite().all()
    assert torch.equal(rows[0], load_file(path / FILE)["image_start"].float())


@pytest.mark.parametrize("name", ["vision.blocks.1.norm2.weight", "aligner.w2.bias", "image_end"])
def test_a_missing_tensor_is_named(path: Path, name: str) -> None:
    weights = load_file(path / FILE)
    del weights[name]
    save_file(weights, path / FILE)
    with pytest.raises(ModelLoadError, match=rf"missing[\s\S]*{name}"):
        load(path)


def test_tensors_of_a_tower_that_is_not_configured_are_unexpected(path: Path) -> None:
    fields = json.loads((path / "config.json").read_text())
    del fields["vision_config"]
    (path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ModelLoadError, match=r"unexpected[\s\S]*image_newline"):
        load(path)


def test_models_without_a_tower_see_no_images(tmp_path: Path) -> None:
    v41 = write_tiny_checkpoint(tmp_path / "v41", "deepseek_v41", **FOUR_LAYERS)
    llama = write_tiny_checkpoint(tmp_path / "llama", "llama")
    assert tower_of(load(v41)) is None
    assert tower_of(load(llama)) is None
