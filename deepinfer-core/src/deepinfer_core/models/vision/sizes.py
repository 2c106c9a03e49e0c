"""How large an image is to the tower: its size in pixels after fitting, and its tokens.

A row of tokens ends with a mark, and an image has one before and one after it. Knows no pixels.
"""

from __future__ import annotations

import math

from deepinfer_core.models.vision.config import VisionConfig

_NUM_MARKS = 2
_MAX_ROUNDS = 64


def count_tokens(width: int, height: int, config: VisionConfig) -> int:
    """Tokens of an image that has been fitted."""
    side = config.patch_size * config.merge_size
    return -(-height // side) * (-(-width // side) + 1) + _NUM_MARKS


def fit(width: int, height: int, config: VisionConfig) -> tuple[int, int]:
    """The size that an image is brought to: whole patches, enough pixels, not too many tokens.

    Raises:
        ValueError: so narrow that no size settles.
    """
    fitted = _enlarge(width, height, config)
    if count_tokens(*fitted, config) <= config.max_image_tokens:
        return fitted
    return _shrink(width, height, config)


def _enlarge(width: int, height: int, config: VisionConfig) -> tuple[int, int]:
    patch, min_pixels = config.patch_size, config.min_pixels
    for _ in range(_MAX_ROUNDS):
        before, scale = (width, height), 1.0
        if width * height < min_pixels:
            scale = math.sqrt(min_pixels / (width * height))
        width, height = (-(-int(side * scale) // patch) * patch for side in before)
        # Just below the area, rounding may undo the scaling: then the size stays.
        if width * height >= min_pixels or (width, height) == before:
            return width, height
    raise ValueError(f"no size is found for it with at least {min_pixels} pixels")


def _shrink(width: int, height: int, config: VisionConfig) -> tuple[int, int]:
    """The largest size of this shape: `columns * (columns + 1) * height / width` tokens are left.

    A strip that is narrower than a token spends all on its length.
    """
    patch, budget = config.patch_size, config.max_image_tokens - _NUM_MARKS
    ratio = height / width
    columns = (math.sqrt(1 + 4 * budget / ratio) - 1) / 2
    if columns < 1:
        num_columns, num_rows = 1, budget // 2
    elif columns * ratio < 1:
        num_columns, num_rows = budget - 1, 1
    else:
        num_columns, num_rows = int(columns), int(columns * ratio)
    side = patch * config.merge_size
    scale = min(side * num_columns / width, side * num_rows / height)
    return (
        max(patch, int(width * scale) // patch * patch),
        max(patch, int(height * scale) // patch * patch),
    )
