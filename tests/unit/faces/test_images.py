"""Images as people give them: what is accepted, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from deepinfer_core.errors import RequestError
from deepinfer_core.faces.images import ImageReader
from deepinfer_core.faces.prompts import parse_prompt, split_prompts
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.vision.config import read_vision_config
from deepinfer_core.plugin_api.recipe import RgbImage
from deepinfer_core.testing.tiny_v41 import TINY_VISION

VISION = read_vision_config(RawConfig({"image_token_id": 9, "vision_config": TINY_VISION}, "x"))
PIXELS = np.random.default_rng(0).integers(0, 256, (24, 36, 3), dtype=np.uint8)


class Reading:
    """A recipe that reads files: width, height, and one number for all pixels."""

    def encode(self, chat: object) -> object: ...

    def parser(self, encoded: object) -> object: ...

    def read_image(self, source: str | bytes) -> RgbImage:
        self.source = source
        if source == b"broken":
            raise RuntimeError("no image in there")
        return RgbImage(36, 24, PIXELS.tobytes())


class Truncated:
    """What a lazily loaded image does whose file ends early."""

    def __array__(self, *args: object, **options: object) -> object:
        raise OSError("image file is truncated")


@pytest.fixture
def recipe() -> Reading:
    return Reading()


@pytest.fixture
def reader(recipe: Reading) -> ImageReader:
    return ImageReader(VISION, recipe)


@pytest.mark.parametrize(
    "given",
    [PIXELS, torch.tensor(PIXELS), PIXELS.tolist(), RgbImage(36, 24, PIXELS.tobytes())],
    ids=["array", "tensor", "list", "rgb"],
)
def test_pixels_are_taken_as_they_are(given: object) -> None:
    if isinstance(given, list):
        given = np.array(given, dtype=np.uint8)
    (image,) = ImageReader(VISION).prepare([given])
    assert np.array_equal(image.pixels, PIXELS)
    assert image.num_tokens == 2 * (3 + 1) + 2


def test_pillow_images_are_pixels() -> None:
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is missing")
    (image,) = ImageReader(VISION).prepare([pillow.fromarray(PIXELS)])
    assert np.array_equal(image.pixels, PIXELS)


def test_files_and_urls_go_to_the_recipe(
    reader: ImageReader, recipe: Reading, tmp_path: Path
) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(b"content")
    wanted = {
        str(path): b"content",
        path: b"content",
        b"bytes": b"bytes",
        "data:image/png;base64,AA": "data:image/png;base64,AA",
        "https://x/y.png": "https://x/y.png",
    }
    for given, seen in wanted.items():
        (image,) = reader.prepare([given])
        assert recipe.source == seen
        assert np.array_equal(image.pixels, PIXELS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            PIXELS.astype(float),
            r"is ndarray of shape \[24, 36, 3\] and type float64; allowed are pixels",
        ),
        (PIXELS[..., 0], r"is ndarray of shape \[24, 36\]"),
        (5, "is int; allowed are pixels"),
        ([[1], [2, 3]], ""),
        (torch.empty(2, 2, 3, device="meta"), ""),
        (Truncated(), "cannot be used: image file is truncated"),
        (torch.zeros(2, 2, 3, requires_grad=True), "cannot be used: "),
        (np.zeros((9000, 3, 3), dtype=np.uint8), "is 3 x 9000 pixels; allowed are sides of 1 to"),
        (RgbImage(2, 2, b"123"), "has 3 bytes of pixels, allowed are 12 for 2 x 2"),
        (b"broken", "cannot be used: no image in there"),
        ("/no/such/file.png", "cannot be read: /no/such/file.png: No such file"),
    ],
)
def test_the_image_at_fault_is_named(reader: ImageReader, given: object, message: str) -> None:
    with pytest.raises(RequestError, match=rf"images\[1\] {message}") as caught:
        reader.prepare([PIXELS, given])
    assert caught.value.field == "images"
    with pytest.raises(RequestError) as caught:
        reader.prepare([given], field="messages")
    assert caught.value.field == "messages"


def test_without_a_recipe_there_are_no_files() -> None:
    with pytest.raises(RequestError, match="needs a recipe that reads files"):
        ImageReader(VISION).prepare([b"x"])


def test_without_a_tower_there_are_no_images() -> None:
    assert ImageReader().prepare([]) == ()
    with pytest.raises(RequestError, match=r"2 were given, allowed are 0.*no vision tower"):
        ImageReader().prepare([PIXELS, PIXELS])


def test_prompts_may_bring_images() -> None:
    item = parse_prompt({"prompt_token_ids": [1, 2], "images": [PIXELS]})
    assert item.token_ids == [1, 2] and item.images == [PIXELS]
    (item,) = split_prompts({"images": [b"x"], "prompt": "a"})
    assert item.text == "a" and item.images == [b"x"]
    for wrong in ({"images": [b"x"]}, {"prompt": "a", "images": "x"}, {"prompt": "a", "b": 1}):
        assert parse_prompt(wrong).error is not None
