"""Failures of image handling, with their kind and whether trying again can help."""

from __future__ import annotations

_UNSUPPORTED = (
    "You have uploaded an unsupported image. Please make sure your image is valid and has one of "
    "the following formats: webp, png, jpeg, and gif."
)


class ImageError(Exception):
    """Images could not be resolved, fetched or prepared, or exceed a limit of the request."""

    def __init__(self, message: str, kind: str, *, is_retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.is_retryable = is_retryable

    def at(self, place: str) -> ImageError:
        """Return the same failure with the place of the image in front."""
        return ImageError(f"{place}: {self.message}", self.kind, is_retryable=self.is_retryable)


class CalcResizeError(ValueError):
    """The size of an image for its token budget was not found."""


def unusable(kind: str) -> ImageError:
    """Return the failure of an image that is none, or none of the known formats."""
    return ImageError(_UNSUPPORTED, kind)


def too_large(max_bytes: int) -> ImageError:
    """Return the failure of an image with too many bytes."""
    return ImageError(f"image file size exceeds limit {max_bytes >> 20} MB", "ImageTooLarge")


def not_fetched(url: str, kind: str, *, is_retryable: bool) -> ImageError:
    """Return the failure of a download."""
    return ImageError(f"Failed to download image from {url}", kind, is_retryable=is_retryable)
