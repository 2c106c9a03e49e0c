"""Images as people and recipes give them, made ready for one model.

Decodes nothing itself: files, bytes and URLs are the recipe's to read. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepinfer_core.errors import RequestError
from deepinfer_core.images import PreparedImage, no_tower
from deepinfer_core.models.vision.config import VisionConfig
from deepinfer_core.models.vision.preprocess import prepare_image
from deepinfer_core.plugin_api.recipe import ReadsImages, Recipe, RgbImage

_ALLOWED = "pixels [height, width, 3] of uint8, a path, the bytes of a file, or a URL"
_URLS = ("data:", "http://", "https://")


class ImageReader:
    """Prepares images for one model. Thread-safe.

    Args:
        vision: None: the model takes no images.
        recipe: reads what is not pixels, if it can.
    """

    def __init__(self, vision: VisionConfig | None = None, recipe: Recipe | None = None) -> None:
        self._vision = vision
        self._reader = recipe if isinstance(recipe, ReadsImages) else None

    def prepare(
        self, images: Sequence[object], *, field: str = "images"
    ) -> tuple[PreparedImage, ...]:
        """Prepare the images of one prompt.

        Args:
            images: each an `RgbImage`, an array or whatever numpy takes for one, a path, the
                content of a file, or a URL.
            field: of the request, for errors.

        Raises:
            RequestError: the model takes none, or one cannot be used; names it.
        """
        if not images:
            return ()
        if self._vision is None:
            raise no_tower(len(images))
        prepared = []
        for index, image in enumerate(images):
            try:
                prepared.append(prepare_image(self._pixels(image), self._vision))
            except (ValueError, TypeError) as error:  # fields of an image may be anything
                raise RequestError(f"images[{index}] {error}", field=field) from error
        return tuple(prepared)

    def _pixels(self, image: Any) -> NDArray[np.uint8]:
        if isinstance(image, (str, bytes, Path)):
            image = self._read(image)
        if isinstance(image, RgbImage):
            return _from_bytes(image)
        try:
            pixels = np.asarray(image)
        except Exception as error:  # the image's own code; whatever it raises ends one request
            raise ValueError(f"cannot be used: {error}") from error
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            found = type(image).__name__
            if pixels.ndim:
                found += f" of shape {list(pixels.shape)} and type {pixels.dtype}"
            raise ValueError(f"is {found}; allowed are {_ALLOWED}")
        return pixels

    def _read(self, source: str | bytes | Path) -> RgbImage:
        if self._reader is None:
            raise ValueError(
                "needs a recipe that reads files, and this model has none; give pixels "
                "[height, width, 3] of uint8, or install deepinfer-recipe[images]"
            )
        if not isinstance(source, bytes) and not str(source).startswith(_URLS):
            try:
                source = Path(source).read_bytes()
            except OSError as error:
                raise ValueError(f"cannot be read: {source}: {error.strerror}") from error
        try:
            return self._reader.read_image(source if isinstance(source, bytes) else str(source))
        except Exception as error:  # a plugin's border; whatever it raises ends one request
            raise ValueError(f"cannot be used: {error}") from error


def _from_bytes(image: RgbImage) -> NDArray[np.uint8]:
    wanted = 3 * image.width * image.height
    if len(image.pixels) != wanted:
        raise ValueError(
            f"has {len(image.pixels)} bytes of pixels, allowed are {wanted} for "
            f"{image.width} x {image.height}"
        )
    flat = np.frombuffer(image.pixels, dtype=np.uint8)
    return flat.reshape(image.height, image.width, 3)
