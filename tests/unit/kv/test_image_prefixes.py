"""Cached prefixes of prompts with images: the same images hit, others do not."""

from __future__ import annotations

from typing import Any

import numpy as np
from deepinfer_core.images import ImageSpan, PreparedImage

IMAGE = 9
PROMPT = [1, 2, *[IMAGE] * 10, *range(20, 32)]
"""Blocks of 4; the image is at 2 .. 11."""


def with_image(bench: Any, digest: bytes | None, start: int = 2) -> Any:
    request = bench.request(PROMPT)
    if digest is not None:
        image = PreparedImage(np.zeros((4, 4, 3), dtype=np.uint8), 10, digest)
        request.images = (ImageSpan(start, image),)
    return request


def test_the_same_image_hits(workbench: Any) -> None:
    bench = workbench()
    bench.admit(with_image(bench, b"a" * 32))
    assert bench.admit(with_image(bench, b"a" * 32)) == 20


def test_another_image_does_not(workbench: Any) -> None:
    bench = workbench()
    bench.admit(with_image(bench, b"a" * 32))
    assert bench.admit(with_image(bench, b"b" * 32)) == 0
    assert bench.admit(with_image(bench, None)) == 0
    assert bench.admit(with_image(bench, b"a" * 32, start=1)) == 0


def test_what_is_before_the_image_hits(workbench: Any) -> None:
    bench = workbench()
    bench.admit(with_image(bench, b"a" * 32, start=6))
    assert bench.admit(with_image(bench, b"b" * 32, start=6)) == 4
    assert bench.admit(with_image(bench, None)) == 4
