"""How large an image is to the model: its size after resizing, and its tokens.

The vision tower sees patches of 14 pixels, of which 3 x 3 make a token. A row of tokens ends with
one more, and an image has two around it.
"""

from __future__ import annotations

import math

from .errors import CalcResizeError

_PATCH = 14
_TOKEN = 42
_MIN_AREA = 544 * 544
_MAX_TOKENS = 1024
_MAX_ROUNDS = 64
LOW_DETAIL_SIDE = 512


def shrink(width: int, height: int, longest: int) -> tuple[int, int]:
    """Return the size scaled down so that no side is longer than `longest` pixels."""
    side = max(width, height)
    if side <= longest:
        return width, height
    scale = longest / side
    return max(1, round(width * scale)), max(1, round(height * scale))


def fit(width: int, height: int) -> tuple[int, int]:
    """Return the size in pixels that an image is resized to.

    Raises:
        CalcResizeError: the size does not settle.
    """
    fitted = _raise_to_min_area(width, height)
    return fitted if _tokens(*fitted) <= _MAX_TOKENS else _lower_to_budget(width, height)


def num_tokens(width: int, height: int) -> int:
    """Return the tokens that an image of this size takes after resizing.

    Raises:
        CalcResizeError: the size does not settle.
    """
    return _tokens(*fit(width, height))


def _tokens(width: int, height: int) -> int:
    return math.ceil(height / _TOKEN) * (math.ceil(width / _TOKEN) + 1) + 2


def _round_up(side: int) -> int:
    return math.ceil(side / _PATCH) * _PATCH


def _raise_to_min_area(width: int, height: int) -> tuple[int, int]:
    if width * height >= _MIN_AREA or width * height == 0:
        return _round_up(width), _round_up(height)
    for _ in range(_MAX_ROUNDS):
        before = width, height
        scale = math.sqrt(_MIN_AREA / (width * height))
        width, height = _round_up(int(width * scale)), _round_up(int(height * scale))
        # Just below the area, rounding may undo the scaling: then the size stays.
        if width * height >= _MIN_AREA or (width, height) == before:
            return width, height
    raise CalcResizeError(f"no size found for {width} x {height} pixels")


def _lower_to_budget(width: int, height: int) -> tuple[int, int]:
    """Return the largest size of the same shape within the token budget."""
    ratio = height / width
    columns = (math.sqrt(1 + 4 * (_MAX_TOKENS - 2) / ratio) - 1) / 2
    if columns < 1:
        num_columns, num_rows = 1, (_MAX_TOKENS - 2) // 2
    elif columns * ratio < 1:
        num_columns, num_rows = _MAX_TOKENS - 3, 1
    else:
        num_columns, num_rows = math.floor(columns), math.floor(columns * ratio)
    scale = min(_TOKEN * num_columns / width, _TOKEN * num_rows / height)
    return _round_down(width * scale), _round_down(height * scale)


def _round_down(side: float) -> int:
    return max(_PATCH, int(side) // _PATCH * _PATCH)
