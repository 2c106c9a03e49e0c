"""Images are brought to the size that the released code gives them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.vision.config import VisionConfig, read_vision_config
from deepinfer_core.models.vision.preprocess import prepare_image
from deepinfer_core.models.vision.sizes import count_tokens, fit
from deepinfer_recipe.images import fit as recipe_fit
from deepinfer_recipe.images import num_tokens as recipe_num_tokens

FIELDS = {
    "num_hidden_layers": 32,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 2816,
    "patch_size": 14,
    "rope_theta": 10000,
    "downsample_ratio": 3,
    "max_image_tokens": 1024,
    "min_pixels": 295936,
    "max_wh_ratio": None,
}


def read(**changed: object) -> VisionConfig:
    fields = {"image_token_id": 129264, "vision_config": FIELDS | changed}
    config = read_vision_config(RawConfig(fields, "config.json"))
    assert config is not None
    return config


def small(**changed: int) -> VisionConfig:
    return replace(read(), **{"patch_size": 4, "min_pixels": 1, "max_image_tokens": 64} | changed)


def image(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_sizes_are_those_of_the_recipe() -> None:
    """An engine must count as the API does, whose rules the recipe has."""
    rng = np.random.default_rng(5)
    sizes = {(int(w), int(h)) for w, h in np.exp(rng.uniform(0, 9, (4000, 2))) + 0.5}
    sizes |= {(1, 8192), (8192, 1), (544, 544), (543, 544), (120, 54), (1302, 1302), (8192, 8192)}
    config = read()
    for width, height in sizes:
        fitted = fit(width, height, config)
        assert fitted == recipe_fit(width, height), (width, height)
        assert count_tokens(*fitted, config) == recipe_num_tokens(width, height), (width, height)


def test_all_sizes_stay_within_the_budget() -> None:
    config = small()
    for width in (1, 3, 50, 1000):
        for height in (1, 4, 77, 8000):
            fitted = fit(width, height, config)
            assert all(side and side % 4 == 0 for side in fitted)
            assert count_tokens(*fitted, config) <= 64


def test_a_fitting_image_keeps_its_pixels() -> None:
    pixels = image(24, 36)
    prepared = prepare_image(pixels, small())
    assert np.array_equal(prepared.pixels, pixels)
    assert prepared.num_tokens == 2 * (3 + 1) + 2


def test_padding_is_grey_and_around_the_image() -> None:
    prepared = prepare_image(np.zeros((5, 16, 3), dtype=np.uint8), small())  # to 8 x 16
    columns = prepared.pixels[:, 8]
    assert prepared.pixels.shape == (8, 16, 3)
    assert columns[:, 0].tolist() == [127, 127, 0, 0, 0, 0, 0, 127]


def test_an_image_is_resized_with_its_shape_kept() -> None:
    """As `ImageOps.pad` of Pillow, which models of this family were trained with.

    Smooth images: versions of Pillow round between directions in different order.
    """
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is missing")
    image_ops = pytest.importorskip("PIL.ImageOps", reason="Pillow is missing")
    config = small(min_pixels=3000)
    for height, width in ((20, 33), (61, 90), (200, 30), (57, 400)):
        y, x, channel = np.mgrid[:height, :width, :3]
        waves = 127 + 120 * np.sin(x / 5 + channel) * np.cos(y / 7 - channel)
        pixels = waves.astype(np.uint8)
        size = fit(width, height, config)
        grey = (127, 127, 127)
        expected = np.asarray(image_ops.pad(image_module.fromarray(pixels), size, color=grey))
        ours = prepare_image(pixels, config).pixels
        assert ours.shape == expected.shape
        assert np.abs(ours.astype(int) - expected.astype(int)).max() <= 1


def test_digests_tell_images_apart() -> None:
    pixels = image(24, 24)
    changed = pixels.copy()
    changed[3, 4, 1] ^= 1
    turned = pixels.reshape(12, 48, 3)
    digests = [prepare_image(p, small()).digest for p in (pixels, pixels.copy(), changed, turned)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_strides_and_later_writes_do_not_matter() -> None:
    pixels = image(24, 24)
    flipped = prepare_image(pixels[:, ::-1], small())
    assert np.array_equal(flipped.pixels, pixels[:, ::-1])
    before = flipped.pixels.copy()
    pixels[:] = 0
    assert np.array_equal(flipped.pixels, before)
    with pytest.raises(ValueError, match="read-only"):
        flipped.pixels[0, 0] = 1


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (8193, 4), (4, 8193)])
def test_impossible_sides_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"is \d+ x \d+ pixels; allowed are sides of 1 to 8192"):
        prepare_image(np.zeros((*shape, 3), dtype=np.uint8), small())


def test_no_section_means_no_tower() -> None:
    assert read_vision_config(RawConfig({"image_token_id": 3}, "config.json")) is None


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_attention_heads", 5, "num_attention_heads = 5 is not a divisor of hidden_size / 4"),
        ("max_image_tokens", 3, "max_image_tokens = 3 is not at least 4"),
        ("max_wh_ratio", 4, "max_wh_ratio = 4; only null is supported"),
        ("patch_size", None, "patch_size is missing"),
        ("min_pixels", 0, "min_pixels = 0 is not at least 1"),
    ],
)
def test_malformed_fields_are_named(field: str, value: object, message: str) -> None:
    with pytest.raises(ModelLoadError, match=f"vision_config: {message}"):
        read(**{field: value})
