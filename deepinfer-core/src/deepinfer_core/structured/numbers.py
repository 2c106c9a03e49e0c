"""Ranges of numbers as grammars over their digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from deepinfer_core.structured.ebnf import repeat

DIGIT = "[0-9]"
NATURAL = '("0" | [1-9] [0-9]*)'
ANY_INTEGER = f'("-"? {NATURAL})'
ANY_NUMBER = f'({ANY_INTEGER} ("." [0-9]+)? ([eE] [+-]? [0-9] [0-9]?)?)'
MAX_DECIMALS = 18


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers between two bounds; None: none."""

    low: Fraction | None = None
    high: Fraction | None = None
    excludes_low: bool = False
    excludes_high: bool = False

    @property
    def is_unbounded(self) -> bool:
        return self.low is None and self.high is None

    @property
    def is_empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        is_open = self.excludes_low or self.excludes_high
        return self.low > self.high or (self.low == self.high and is_open)

    def meet(self, other: Interval) -> Interval:
        """What is in both."""
        lows = [(i.low, i.excludes_low) for i in (self, other) if i.low is not None]
        highs = [(-i.high, i.excludes_high) for i in (self, other) if i.high is not None]
        low = max(lows, default=None)
        high = max(highs, default=None)
        return Interval(
            low[0] if low else None,
            -high[0] if high else None,
            low[1] if low else False,
            high[1] if high else False,
        )

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, (int, Decimal, Fraction))
        point = Fraction(number)
        return not self.meet(Interval(point, point)).is_empty

    def mirrored(self) -> Interval:
        """Of the numbers with the other sign."""
        return Interval(
            None if self.high is None else -self.high,
            None if self.low is None else -self.low,
            self.excludes_high,
            self.excludes_low,
        )

    def integers(self) -> tuple[int | None, int | None]:
        """The least and the largest whole number."""
        low = high = None
        if self.low is not None:
            low = math.ceil(self.low)
            low += self.excludes_low and low == self.low
        if self.high is not None:
            high = math.floor(self.high)
            high -= self.excludes_high and high == self.high
        return low, high


def integer_expression(interval: Interval) -> str | None:
    """Whole numbers within an interval; None: there are none."""
    if interval.is_unbounded:
        return ANY_INTEGER
    low, high = interval.integers()
    parts = [_natural(max(low or 0, 0), high)]
    negative = _natural(max(1, 1 if high is None else -high), None if low is None else -low)
    if negative is not None:
        parts.append(f'"-" {negative}')
    return _either(parts)


def number_expression(interval: Interval) -> str | None:
    """Numbers within an interval, written without exponents; None: there are none.

    Raises:
        ValueError: a bound has too many decimals.
    """
    if interval.is_unbounded:
        return ANY_NUMBER
    if interval.is_empty:
        return None
    scales = [_num_decimals(bound) for bound in (interval.low, interval.high) if bound is not None]
    num_decimals = max(scales)
    positive = _magnitudes(interval.meet(Interval(low=Fraction(0))), num_decimals)
    below = interval.meet(Interval(high=Fraction(0), excludes_high=True))
    negative = None if below.is_empty else _magnitudes(below.mirrored(), num_decimals)
    return _either([positive, negative and f'"-" {negative}'])


def _magnitudes(interval: Interval, num_decimals: int) -> str | None:
    """Numbers that are not negative, with fewer decimals than the bounds, as many, and more."""
    if interval.is_empty or interval.low is None:
        return None
    parts = []
    for decimals in range(num_decimals):
        low, high = _scaled(interval, decimals).integers()
        parts.append(_natural(low or 0, high, decimals))
    scaled = _scaled(interval, num_decimals)
    assert scaled.low is not None
    least = int(scaled.low)
    most = None if scaled.high is None else int(scaled.high)
    point = "" if num_decimals else '"." '
    tail = f"({point}[0-9]+)?"
    first = least
    if scaled.excludes_low:
        first += 1
        if most is None or least < most:
            exact = _natural(least, least, num_decimals)
            parts.append(f"{exact} {point}[0-9]* [1-9] [0-9]*")
    whole = _natural(first, None if most is None else most - 1, num_decimals)
    parts.append(whole and f"{whole} {tail}")
    if most is not None and not scaled.excludes_high and most >= first:
        exact = _natural(most, most, num_decimals)
        parts.append(f'{exact} ({point}"0"+)?')
    return _either(parts)


def _scaled(interval: Interval, decimals: int) -> Interval:
    factor = 10**decimals
    return Interval(
        None if interval.low is None else interval.low * factor,
        None if interval.high is None else interval.high * factor,
        interval.excludes_low,
        interval.excludes_high,
    )


def _num_decimals(bound: Fraction) -> int:
    for decimals in range(MAX_DECIMALS + 1):
        if (bound * 10**decimals).denominator == 1:
            return decimals
    raise ValueError(f"{float(bound)} has more than {MAX_DECIMALS} decimals")


def _natural(low: int, high: int | None, decimals: int = 0) -> str | None:
    """Digits of the numbers from low to high, the last ones behind a point."""
    if high is not None and low > high:
        return None
    parts = []
    length = max(len(str(low)), decimals + 1)
    last = length if high is None else max(len(str(high)), decimals + 1)
    for size in range(length, last + 1):
        start = max(low, 0 if size == decimals + 1 else 10 ** (size - 1))
        end = 10**size - 1 if high is None else min(high, 10**size - 1)
        if start <= end:
            parts.append(_digits(str(start).zfill(size), str(end).zfill(size), decimals))
    if high is None:
        fraction = f' "." {repeat(DIGIT, decimals, decimals)}' if decimals else ""
        parts.append(f"[1-9] {repeat(DIGIT, last - decimals, None)}{fraction}")
    return _either(parts)


def _digits(low: str, high: str, decimals: int) -> str:
    """Numbers of as many digits as the bounds."""
    if not low:
        return ""
    point = '"." ' if decimals and len(low) == decimals else ""
    if set(low) == {"0"} and set(high) == {"9"}:
        if decimals and len(low) > decimals:
            whole = repeat(DIGIT, len(low) - decimals, len(low) - decimals)
            return f'{whole} "." {repeat(DIGIT, decimals, decimals)}'
        return f"{point}{repeat(DIGIT, len(low), len(low))}"
    rest = len(low) - 1
    if low[0] == high[0]:
        return f'{point}"{low[0]}" {_digits(low[1:], high[1:], decimals)}'.rstrip()
    first, last = int(low[0]), int(high[0])
    parts = []
    if set(low[1:]) - {"0"}:
        parts.append(f'"{first}" {_digits(low[1:], "9" * rest, decimals)}')
        first += 1
    ends = bool(set(high[1:]) - {"9"})
    if first <= last - ends:
        parts.append(
            f"[{first}-{last - ends}] {_digits('0' * rest, '9' * rest, decimals)}".rstrip()
        )
    if ends:
        parts.append(f'"{last}" {_digits("0" * rest, high[1:], decimals)}')
    return f"{point}({' | '.join(parts)})"


def _either(parts: Sequence[str | None]) -> str | None:
    found = [part for part in parts if part]
    if not found:
        return None
    return found[0] if len(found) == 1 else f"({' | '.join(f'{part}' for part in found)})"
