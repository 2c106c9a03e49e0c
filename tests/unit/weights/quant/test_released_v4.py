"""DeepSeek-V4 as it is released: FP8 with powers of two as scales, FP4 experts, integer tables."""

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

BLOCK = 32
GROUP = 32
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FP8_NAMES = (".attn.wq_a.", ".attn.wq_b.", ".attn.wkv.", ".wo_a.", ".wo_b.", ".shared_experts.")


def power_bytes(exponents: Tensor) -> Tensor:
    return (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def to_fp8(weight: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random codes and scales, and what they mean by the definition."""
    generator = torch.Generator().manual_seed(seed)
    codes = (weight * 64).to(torch.float8_e4m3fn)
    shape = tuple(-(-size // BLOCK) for size in weight.shape)
    exponents = torch.randint(-9, -2, shape, generator=generator)
    meant = torch.empty_like(weight)
    for i in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            meant[i, j] = codes[i, j].float() * 2.0 ** int(exponents[i // BLOCK, j // BLOCK])
    return codes, power_bytes(exponents), meant


def to_fp4(weight: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    num_rows, num_columns = weight.shape
    codes = torch.randint(0, 16, weight.shape, generator=generator)
    exponents = torch.randint(-6, 0, (num_rows, num_columns // GROUP), generator=generator)
    meant = torch.empty_like(weight)
    for i in range(num_rows):
        for j in range(num_columns):
            sign = -1.0 if codes[i, j] >= 8 else 1.0
            scale = 2.0 ** int(exponents[i, j // GROUP])
            meant[i, j] = sign * E2M1[int(codes[i, j]) % 8] * scale
    packed = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8).view(torch.int8)
    return packed, power_bytes(exponents), meant


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    """A tiny V4 with codes where the released one has them, and what its tensors mean."""
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("v4"), "deepseek_v4")
    path = directory / "model.safetensors"
    stored: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    for seed, (name, tensor) in enumerate(load_file(path).items()):
        scale_name = name.removesuffix(".weight") + ".scale"
        is_compressor = ".compressor." in name
        if ".experts." in name:
            stored[name], stored[scale_name], meant[name] = to_fp4(tensor, seed)
        elif not is_compressor and any(part in name for part in FP8_NAMES):
            stored[name], stored[scale_name], meant[name] = to_fp8(tensor, seed)
        else:
            stored[name] = meant[name] = tensor
    save_file(stored, path)
    config = json.loads((directory / "config.json").read_text())
    config["expert_dtype"] = "fp4"
    config["quantization_config"] = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [BLOCK, BLOCK],
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory, meant


def test_every_tensor_is_what_its_codes_mean(released: tuple[Path, dict[str, Tensor]]) -> None:
    directory, meant = released
    checkpoint = open_checkpoint(directory)
    table = reference_table(overrides={"gemm.dense": "torch.invariant"})
    model = build_model(checkpoint.info, table, dtype="float32")
    load_weights(model, checkpoint, device="cpu")
    views = checkpoint_views(model)
    assert views.keys() == meant.keys()
    assert sum(".experts." in name for name in meant) == 5 * 8 * 3
    for name, tensor in meant.items():
        assert torch.equal(views[name], tensor), name


def test_scales_that_do_not_fit_are_named(
    released: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    directory, _ = released
    tensors = load_file(directory / "model.safetensors")
    name = "layers.0.ffn.experts.3.w2.scale"
    tensors[name] = tensors[name].view(torch.uint8)[:-1].view(torch.float8_e8m0fnu)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    with pytest.raises(ModelLoadError, match=rf"{name} has shape \[63, 1\].* needs \[64, 1\]"):
        open_checkpoint(tmp_path)
