"""FP8 checkpoints load as the numbers that their codes and scales mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.layers.packed import checkpoint_views
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint
from safetensors.torch import load_file, save_file
from torch import Tensor

ROWS, COLUMNS = 16, 24
"""No divisors of all sizes, so that there are partial blocks."""
PLAIN = {"gemm.dense": "torch.invariant"}


def quantize(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales, and the numbers they mean, block by block."""
    num_rows, num_columns = weight.shape
    codes = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-num_rows // ROWS), -(-num_columns // COLUMNS))
    meant = torch.empty_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            place = (slice(i * ROWS, (i + 1) * ROWS), slice(j * COLUMNS, (j + 1) * COLUMNS))
            scales[i, j] = weight[place].abs().max() / 448
            codes[place] = (weight[place] / scales[i, j]).to(torch.float8_e4m3fn)
            meant[place] = codes[place].float() * scales[i, j]
    return codes, scales, meant


@pytest.fixture
def quantized(tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    """A tiny DeepSeek-V3 as it is released, and what its tensors mean."""
    directory = write_tiny_checkpoint(tmp_path, "deepseek_v3")
    path = directory / "model.safetensors"
    stored: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    for name, tensor in load_file(path).items():
        is_quantized = name.endswith(("proj.weight", "proj_with_mqa.weight"))
        if is_quantized:
            stored[name], stored[f"{name}_scale_inv"], meant[name] = quantize(tensor)
        else:
            stored[name] = meant[name] = tensor
    save_file(stored, path)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [ROWS, COLUMNS],
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory, meant


def test_every_matrix_is_what_its_codes_mean(quantized: tuple[Path, dict[str, Tensor]]) -> None:
    directory, meant = quantized
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, reference_table(overrides=PLAIN), dtype="float32")
    load_weights(model, checkpoint, device="cpu")
    views = checkpoint_views(model)
    assert views.keys() == meant.keys()
    for name, tensor in meant.items():
        assert torch.equal(views[name], tensor), name


def edit(directory: Path, name: str, tensor: Tensor | None) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors.pop(name)
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, path)


NAME = "model.layers.0.self_attn.o_proj.weight"


def test_a_missing_scale_is_named(quantized: tuple[Path, dict[str, Tensor]]) -> None:
    directory, _ = quantized
    edit(directory, f"{NAME}_scale_inv", None)
    with pytest.raises(ModelLoadError, match=rf"{NAME}_scale_inv is missing; .*needs \[4, 4\]"):
        open_checkpoint(directory)


def test_a_scale_of_another_shape_is_named(quantized: tuple[Path, dict[str, Tensor]]) -> None:
    directory, _ = quantized
    edit(directory, f"{NAME}_scale_inv", torch.ones(4, 3))
    with pytest.raises(ModelLoadError, match=r"has shape \[4, 3\].*needs \[4, 4\]"):
        open_checkpoint(directory)


def test_a_scale_of_nothing_is_unexpected(quantized: tuple[Path, dict[str, Tensor]]) -> None:
    directory, meant = quantized
    edit(directory, NAME, meant[NAME])
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, reference_table(), dtype="float32")
    with pytest.raises(ModelLoadError) as caught:
        load_weights(model, checkpoint, device="cpu")
    assert caught.value.unexpected == [f"{NAME}_scale_inv"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fmt": "e5m2"}, "weights quantised with fp8 e5m2 cannot be read; known: fp8 e4m3"),
        ({"weight_block_size": None}, "weight_block_size"),
        ({"weight_block_size": [128]}, r"weight_block_size = \[128\] is not \[rows, columns\]"),
        ({"weight_block_size": [0, 128]}, r"weight_block_size = \[0, 128\] is not"),
    ],
)
def test_what_cannot_be_read(
    changes: dict[str, object], message: str, quantized: tuple[Path, dict[str, Tensor]]
) -> None:
    directory, _ = quantized
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] |= changes
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=message):
        open_checkpoint(directory)
