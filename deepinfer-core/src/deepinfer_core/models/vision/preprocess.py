"""Pixels as they were decoded to pixels as the tower takes them: resized and padded.

Runs on the host, at the edge, where an image that cannot be used ends one request. Decodes no
file formats.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from deepinfer_core.images import PreparedImage
from deepinfer_core.models.vision.config import VisionConfig
from deepinfer_core.models.vision.sizes import count_tokens, fit

MAX_SIDE = 8192
"""Pixels; what decodes to more is refused rather than resized."""
PADDING = 127
"""Of all three channels; nearly zero to the tower."""


def prepare_image(pixels: NDArray[np.uint8], config: VisionConfig) -> PreparedImage:
    """Bring an image to the size that the tower takes.

    Args:
        pixels: [height, width, 3] uint8, red, green, blue.

    Raises:
        ValueError: a side is 0 or too long, or no size settles; says what is allowed.
    """
    height, width, _ = pixels.shape
    if not 0 < min(height, width) <= max(height, width) <= MAX_SIDE:
        raise ValueError(
            f"is {width} x {height} pixels; allowed are sides of 1 to {MAX_SIDE} pixels"
        )
    size = fit(width, height, config)
    fitted = _resize_and_pad(pixels, *size)
    fitted.flags.writeable = False
    digest = blake2b(repr(size).encode() + fitted.tobytes(), digest_size=32).digest()
    return PreparedImage(fitted, count_tokens(*size, config), digest)


def _resize_and_pad(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """The largest image of the same shape that fits, centred: [height, width, 3]."""
    scale = min(width / pixels.shape[1], height / pixels.shape[0])
    inner_width = min(width, max(1, round(pixels.shape[1] * scale)))
    inner_height = min(height, max(1, round(pixels.shape[0] * scale)))
    inner = np.ascontiguousarray(pixels)
    if inner.shape[:2] != (inner_height, inner_width):
        planes = torch.tensor(inner).permute(2, 0, 1).unsqueeze(0)
        size = (inner_height, inner_width)
        planes = F.interpolate(planes, size, mode="bicubic", antialias=True)
        inner = planes[0].permute(1, 2, 0).contiguous().numpy()
    canvas = np.full((height, width, 3), PADDING, dtype=np.uint8)
    top, left = round((height - inner_height) * 0.5), round((width - inner_width) * 0.5)
    canvas[top : top + inner_height, left : left + inner_width] = inner
    return canvas
