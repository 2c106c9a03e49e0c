"""Where images stand in a prompt, and what tells prompts with other images apart."""

from __future__ import annotations

import numpy as np
import pytest
from deepinfer_core.errors import RequestError
from deepinfer_core.images import ImageSpan, PreparedImage, content_of, place_images

IMAGE = 9


def image(num_tokens: int, digest: bytes = b"d" * 32) -> PreparedImage:
    return PreparedImage(np.zeros((4, 4, 3), dtype=np.uint8), num_tokens, digest)


def test_each_image_token_makes_room_for_its_image() -> None:
    first, second = image(3), image(2)
    ids, spans = place_images([1, IMAGE, 2, 3, IMAGE], [first, second], IMAGE)
    assert ids == [1, IMAGE, IMAGE, IMAGE, 2, 3, IMAGE, IMAGE]
    assert [(span.start, span.end) for span in spans] == [(1, 4), (6, 8)]
    assert [span.image for span in spans] == [first, second]


@pytest.mark.parametrize("ids", [[1, 2], [IMAGE, 1, IMAGE]])
def test_as_many_image_tokens_as_images(ids: list[int]) -> None:
    message = rf"has {ids.count(IMAGE)} image tokens \(id 9\) for 1 images"
    with pytest.raises(RequestError, match=message) as caught:
        place_images(ids, [image(3)], IMAGE)
    assert caught.value.field == "images"


def test_content_is_that_of_the_images_within() -> None:
    spans = (ImageSpan(4, image(3, b"a" * 32)), ImageSpan(10, image(2, b"b" * 32)))
    assert content_of(spans, 0, 4) == content_of(spans, 7, 10) == content_of(spans, 12, 99) == b""
    assert b"a" * 32 in content_of(spans, 0, 5)
    assert b"a" * 32 in content_of(spans, 6, 8)
    assert b"b" * 32 not in content_of(spans, 6, 8)
    both = content_of(spans, 5, 12)
    assert both.index(b"a" * 32) < both.index(b"b" * 32)


def test_content_names_the_place_in_the_image() -> None:
    """Two images of one token id: only the place says where the first ends."""
    one = (ImageSpan(0, image(4)), ImageSpan(4, image(4)))
    other = (ImageSpan(0, image(6)), ImageSpan(6, image(2)))
    assert content_of(one, 0, 8) != content_of(other, 0, 8)
    assert content_of(one, 1, 2) != content_of(one, 2, 3)
