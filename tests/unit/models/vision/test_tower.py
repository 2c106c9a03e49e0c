"""The tower against formulas written out patch by patch, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from deepinfer_core.models.layers.packed import checkpoint_views
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.vision.config import VisionConfig, read_vision_config
from deepinfer_core.models.vision.tower import VisionTower
from deepinfer_core.ops.table import reference_table
from torch import nn

OUT_SIZE = 24
FIELDS = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "patch_size": 4,
    "rope_theta": 10000,
    "downsample_ratio": 3,
    "max_image_tokens": 64,
    "min_pixels": 100,
    "max_wh_ratio": None,
}
RELEASED = FIELDS | {
    "num_hidden_layers": 32,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 2816,
    "patch_size": 14,
    "max_image_tokens": 1024,
    "min_pixels": 295936,
}


class Holder(nn.Module):
    """Stands for the model that holds the tower."""

    def __init__(self, tower: VisionTower) -> None:
        super().__init__()
        self.vision = tower

    @staticmethod
    def stored_name(name: str) -> str:
        return VisionTower.stored_name(name)


def config_of(fields: dict[str, object]) -> VisionConfig:
    raw = RawConfig({"image_token_id": 9, "vision_config": fields}, "config.json")
    config = read_vision_config(raw)
    assert config is not None
    return config


def make_tower(num_layers: int = 2, dtype: str = "float32") -> VisionTower:
    config = config_of(FIELDS | {"num_hidden_layers": num_layers})
    tower = VisionTower(reference_table(), config, OUT_SIZE, dtype=dtype)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in tower.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 2:
            noise *= (3 if "wqkv" in name else 1) / math.sqrt(parameter.shape[1])
        elif "norm" in name:
            noise = 1 + 0.2 * noise
        parameter.copy_(noise)
    return tower


def pixels_of(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def dense_reference(tower: VisionTower, pixels: np.ndarray) -> np.ndarray:
    """What the tower should give, one patch and one number at a time."""
    p = {name: value.double().numpy() for name, value in tower.named_parameters()}
    config, side = tower.config, tower.config.patch_size
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    x = []
    for r in range(rows):
        for c in range(columns):
            flat = [
                2 * int(pixels[r * side + i, c * side + j, channel]) / 255 - 1
                for channel in range(3)
                for i in range(side)
                for j in range(side)
            ]
            x.append(p["patch_embed.proj.weight"] @ flat + p["patch_embed.proj.bias"])
    for layer in range(config.num_layers):
        x = reference_block(p, f"blocks.{layer}.", x, columns, config)
    x = [rms(row, p["norm.weight"]) for row in x]
    tokens = [p["image_start"]]
    for big_row in range(-(-rows // 3)):
        for big_column in range(-(-columns // 3)):
            tokens.append(reference_align(p, x, big_row, big_column, (rows, columns)))
        tokens.append(p["image_newline"])
    return np.stack([*tokens, p["image_end"]])


def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return weight * x / math.sqrt(np.mean(x * x) + 1e-6)


def rotate(x: np.ndarray, row: int, column: int, theta: float) -> np.ndarray:
    half = len(x) // 2
    out = np.empty_like(x)
    for i in range(half):
        place, index = (row, i) if i < half // 2 else (column, i - half // 2)
        angle = place * theta ** (-2 * index / half)
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def reference_block(p, name, x, columns, config):
    size, heads, dim = config.hidden_size, config.num_heads, config.head_dim
    projected = [
        p[name + "attn.wqkv.weight"] @ rms(row, p[name + "norm1.weight"])
        + p[name + "attn.wqkv.bias"]
        for row in x
    ]
    mixed = np.zeros((len(x), size))
    for head in range(heads):
        q, k, v = (
            [row[part * size + head * dim : part * size + (head + 1) * dim] for row in projected]
            for part in range(3)
        )
        q, k = (
            [rotate(t, n // columns, n % columns, config.rope_theta) for n, t in enumerate(rows)]
            for rows in (q, k)
        )
        for n in range(len(x)):
            weights = np.exp([q[n] @ key / math.sqrt(dim) for key in k])
            mixed[n, head * dim : (head + 1) * dim] = weights / weights.sum() @ np.stack(v)
    out = []
    for row, y in zip(x, mixed, strict=True):
        row = row + p[name + "attn.wo.weight"] @ y + p[name + "attn.wo.bias"]
        gate, up = np.split(p[name + "mlp.w1.weight"] @ rms(row, p[name + "norm2.weight"]), 2)
        out.append(row + p[name + "mlp.w2.weight"] @ (gate / (1 + np.exp(-gate)) * up))
    return out


def reference_align(p, x, big_row, big_column, grid):
    rows, columns = grid
    merged = []
    for channel in range(len(x[0])):
        for i in range(3):
            for j in range(3):
                r, c = big_row * 3 + i, big_column * 3 + j
                inside = r < rows and c < columns
                merged.append(x[r * columns + c][channel] if inside else 0.0)
    y = p["aligner.w1.weight"] @ np.array(merged) + p["aligner.w1.bias"]
    y = np.array([0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in y])
    return p["aligner.w2.weight"] @ y + p["aligner.w2.bias"]


@pytest.mark.parametrize("num_layers", [0, 2])
@pytest.mark.parametrize("size", [(12, 12), (20, 28), (4, 40), (36, 8)])
def test_the_tower_computes_what_the_formulas_say(num_layers: int, size: tuple[int, int]) -> None:
    tower, pixels = make_tower(num_layers), pixels_of(*size)
    rows = tower(torch.tensor(pixels)).double().numpy()
    expected = dense_reference(tower, pixels)
    assert rows.shape == expected.shape
    assert np.abs(rows - expected).max() <= 2e-5 * np.abs(expected).max()


def test_marks_stand_around_lines() -> None:
    tower = make_tower()
    rows = tower(torch.tensor(pixels_of(20, 28)))  # 5 x 7 patches: 2 lines of 3
    assert len(rows) == 2 * (3 + 1) + 2
    assert torch.equal(rows[0], tower.image_start)
    assert torch.equal(rows[-1], tower.image_end)
    assert torch.equal(rows[4], tower.image_newline)
    assert torch.equal(rows[8], tower.image_newline)


def test_a_patch_sees_the_whole_image() -> None:
    tower, pixels = make_tower(), pixels_of(24, 24)
    changed = pixels.copy()
    changed[-1, -1] ^= 128
    first, second = tower(torch.tensor(pixels)), tower(torch.tensor(changed))
    assert not torch.equal(first[1], second[1])


def test_norms_stay_in_float32_in_a_model_of_bfloat16() -> None:
    tower = make_tower(dtype="bfloat16")
    views = checkpoint_views(Holder(tower))
    wide = {name for name, view in views.items() if view.dtype == torch.float32}
    assert wide == {name for name in views if "norm" in name}
    rows = tower(torch.tensor(pixels_of(12, 24)))
    assert rows.dtype == torch.bfloat16
    expected = make_tower()(torch.tensor(pixels_of(12, 24)))
    assert (rows - expected).abs().max() < 0.05 * expected.abs().max()


def test_released_names_and_sizes() -> None:
    with torch.device("meta"):
        tower = VisionTower(reference_table(), config_of(RELEASED), 5120, dtype="bfloat16")
    views = checkpoint_views(Holder(tower))
    assert len(views) == 266
    shapes = {name: tuple(view.shape) for name, view in views.items()}
    assert shapes["vision.patch_embed.proj.weight"] == (1024, 588)
    assert shapes["vision.blocks.31.attn.wqkv.weight"] == (3072, 1024)
    assert shapes["vision.blocks.0.mlp.w1.weight"] == (5632, 1024)
    assert shapes["vision.blocks.0.mlp.w2.weight"] == (1024, 2816)
    assert shapes["vision.norm.weight"] == (1024,)
    assert shapes["aligner.w1.weight"] == (5120, 9216)
    assert shapes["aligner.w2.bias"] == (5120,)
    assert shapes["image_start"] == shapes["image_newline"] == shapes["image_end"] == (5120,)
    num_bytes = sum(view.nbytes for view in views.values())
    assert 0.96e9 < num_bytes < 0.98e9
