"""Prepared images, the options of one preparation, and the counts of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..arguments import check_choice, check_list, check_uint
from ..conversation import ImageDetail
from .sizes import num_tokens


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """A prepared image: encoded bytes, and its size in pixels."""

    data: bytes
    width: int
    height: int

    def __post_init__(self) -> None:
        check_uint("width", self.width)
        check_uint("height", self.height)


class MultiModalData:
    """The images of a prompt, in the order of their placeholders."""

    def __init__(self, images: Sequence[ImageInfo] | None = None) -> None:
        self._images = check_list("images", images or [], ImageInfo)

    @property
    def images(self) -> list[ImageInfo]:
        """The images."""
        return list(self._images)

    def is_empty(self) -> bool:
        """Return whether there is no image."""
        return not self._images

    def image_token_adjustment(self) -> int:
        """Return the tokens beyond the one placeholder that each image has in the prompt.

        Raises:
            CalcResizeError: a size does not settle.
        """
        return sum(num_tokens(image.width, image.height) - 1 for image in self._images)


class ImageQuota:
    """Images and bytes that the completed resolve calls of one request have used."""

    def __init__(self) -> None:
        self._image_count = 0
        self._byte_size = 0

    def image_count(self) -> int:
        """Return the number of images."""
        return self._image_count

    def byte_size(self) -> int:
        """Return the number of encoded bytes."""
        return self._byte_size

    def record(self, image_count: int, byte_size: int) -> None:
        """Count the images of a completed call."""
        self._image_count += image_count
        self._byte_size += byte_size


@dataclass(frozen=True, slots=True)
class PreprocessOptions:
    """Options of one preparation. Sides longer than `max_dimension_px` are refused."""

    detail: ImageDetail
    max_dimension_px: int
    low_detail_max_dimension_px: int

    def __post_init__(self) -> None:
        check_choice("detail", self.detail, ("low", "high", "original", "auto"))
        check_uint("max_dimension_px", self.max_dimension_px)
        check_uint("low_detail_max_dimension_px", self.low_detail_max_dimension_px)
