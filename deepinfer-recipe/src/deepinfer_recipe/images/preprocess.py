"""Decoding, resizing and encoding of one image, with Pillow (extra `images`).

The format is told by the bytes. Only the first frame of an animation is used.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from ..arguments import check_instance
from .errors import ImageError, unusable
from .sizes import fit, shrink
from .types import ImageInfo, PreprocessOptions

if TYPE_CHECKING:
    from PIL.Image import Image

_FORMATS = ("WEBP", "PNG", "JPEG", "GIF")
_MAX_WEBP_SIDE = 16380
_QUALITY = 95


class OpenCvImagePreprocessor:
    """Prepares images for the model. The name is that of the original's; the work is Pillow's."""

    def preprocess(self, data: bytes, options: PreprocessOptions) -> ImageInfo:
        """Decode an image, resize it and encode it as WebP.

        Raises:
            ImageError: no image in a known format, or too large.
            ImportError: Pillow is missing; install the extra `images`.
        """
        check_instance("options", options, PreprocessOptions)
        try:
            return prepare(bytes(data), options)
        except ImageError as error:
            raise error.at("image[0]") from error


def prepare(data: bytes, options: PreprocessOptions) -> ImageInfo:
    """As `OpenCvImagePreprocessor.preprocess`; the error names no place."""
    image = resize(data, options)
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=_QUALITY)
    return ImageInfo(buffer.getvalue(), *image.size)


def resize(data: bytes, options: PreprocessOptions) -> Image:
    """Decode an image, set it upright and resize it; in RGB, or RGBA where it has transparency.

    Raises:
        ImageError, ImportError: as `OpenCvImagePreprocessor.preprocess`.
    """
    from PIL import Image as pillow  # optional: extra `images`
    from PIL import ImageOps  # optional: extra `images`

    if not data:
        raise unusable("EmptyImage")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # the sides are checked
        try:
            image: Image = pillow.open(io.BytesIO(data), formats=_FORMATS)
        except pillow.DecompressionBombError:
            raise unusable("ImageDimensionsTooLarge") from None
        except Exception as error:  # Pillow raises many kinds on broken files
            raise unusable("UnsupportedMediaType") from error
    if max(image.size) > options.max_dimension_px:
        raise unusable("ImageDimensionsTooLarge")
    try:
        image.load()
        upright = ImageOps.exif_transpose(image)
        flat = upright.convert("RGBA" if _has_alpha(upright) else "RGB")
    except Exception as error:  # as above
        raise unusable("Decode") from error
    return flat.resize(_target_size(flat.size, options))


def _target_size(size: tuple[int, int], options: PreprocessOptions) -> tuple[int, int]:
    if options.detail == "low":
        size = shrink(*size, options.low_detail_max_dimension_px)
    width, height = fit(*size)
    return min(width, _MAX_WEBP_SIDE), min(height, _MAX_WEBP_SIDE)


def _has_alpha(image: Any) -> bool:
    return image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
