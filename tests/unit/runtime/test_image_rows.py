"""Which rows of which images a step gets, and how often the tower runs for them."""

from __future__ import annotations

import numpy as np
import torch
from deepinfer_core.images import ImageSpan, PreparedImage
from deepinfer_core.runtime.batch import ImageRows
from deepinfer_core.runtime.image_rows import ImageEncoder
from deepinfer_core.scheduling.plan import StepPlan
from torch import Tensor

CPU = torch.device("cpu")


class CountingTower:
    """Row i of an image is (its first pixel, i)."""

    config = None

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, pixels: Tensor) -> Tensor:
        self.calls.append(int(pixels[0, 0, 0]))
        num_tokens = pixels.shape[0]
        return torch.tensor([[self.calls[-1], i] for i in range(num_tokens)], dtype=torch.float32)


def span(start: int, name: int, num_tokens: int = 5) -> ImageSpan:
    pixels = np.full((num_tokens, 4, 3), name, dtype=np.uint8)
    pixels.flags.writeable = False
    return ImageSpan(start, PreparedImage(pixels, num_tokens, bytes([name]) * 32))


def plan(*chunks: tuple[int, int, int]) -> StepPlan:
    """Of (row, start, number of tokens)."""
    rows, starts, lens = (list(column) for column in zip(*chunks, strict=True))
    return StepPlan(0, rows=rows, num_computed_tokens=starts, num_scheduled_tokens=lens)


def encoder() -> tuple[ImageEncoder, CountingTower]:
    tower = CountingTower()
    return ImageEncoder(tower, CPU), tower  # type: ignore[arg-type]


def rows(images: ImageRows | None) -> dict[int, list[int]]:
    assert images is not None
    assert images.is_image.nonzero().flatten().tolist() == images.rows.tolist()
    pairs = zip(images.rows.tolist(), images.embeddings.int().tolist(), strict=True)
    return dict(pairs)


def test_each_token_gets_its_row() -> None:
    images, _ = encoder()
    images.start_row(3, [span(1, 7), span(9, 8)])
    images.start_row(0, [span(0, 6, num_tokens=2)])
    got = images.rows_of(plan((1, 4, 2), (3, 0, 12), (0, 0, 3)))
    assert got is not None and got.is_image.shape == (17,)
    expected = {2 + p: [7, p - 1] for p in range(1, 6)}
    expected |= {2 + p: [8, p - 9] for p in range(9, 12)}
    assert rows(got) == expected | {14: [6, 0], 15: [6, 1]}


def test_chunks_may_cut_an_image_which_is_encoded_once() -> None:
    images, tower = encoder()
    images.start_row(2, [span(3, 7)])
    assert images.rows_of(plan((2, 0, 3))) is None
    assert tower.calls == []
    assert rows(images.rows_of(plan((2, 3, 1)))) == {0: [7, 0]}
    assert rows(images.rows_of(plan((5, 0, 4), (2, 4, 3)))) == {4: [7, 1], 5: [7, 2], 6: [7, 3]}
    assert rows(images.rows_of(plan((2, 7, 6)))) == {0: [7, 4]}
    assert tower.calls == [7]
    assert images.rows_of(plan((2, 13, 1))) is None


def test_the_rows_of_a_computed_image_are_not_kept_but_its_pixels_are() -> None:
    """A preempted request computes its prompt again."""
    images, tower = encoder()
    images.start_row(2, [span(0, 7)])
    first = rows(images.rows_of(plan((2, 0, 8))))
    assert not images._encoded
    assert rows(images.rows_of(plan((2, 0, 8)))) == first
    assert tower.calls == [7, 7]


def test_equal_images_of_a_step_are_encoded_once() -> None:
    images, tower = encoder()
    for row in (0, 1):
        images.start_row(row, [span(0, 7)])
    assert len(rows(images.rows_of(plan((0, 0, 5), (1, 0, 5))))) == 10
    assert tower.calls == [7]


def test_an_image_may_stand_twice_in_a_prompt() -> None:
    images, _ = encoder()
    images.start_row(0, [span(0, 7), span(6, 7)])
    got = rows(images.rows_of(plan((0, 0, 12))))
    assert [got[i] for i in range(5)] == [got[6 + i] for i in range(5)]
    assert len(got) == 10


def test_a_row_forgets_its_last_owner() -> None:
    images, _ = encoder()
    images.start_row(0, [span(0, 7)])
    images.rows_of(plan((0, 0, 2)))
    images.start_row(0, ())
    assert images.rows_of(plan((0, 0, 5))) is None
    images.start_row(0, [span(0, 8)])
    assert rows(images.rows_of(plan((0, 0, 1)))) == {0: [8, 0]}
    images.free_row(0)
    images.free_row(0)
    assert not images._encoded and not images._spans
