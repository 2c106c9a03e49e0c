"""Images on their way to the model: ready pixels, and where in a prompt they stand.

Imports no torch: the scheduler hands these on and looks at positions only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer_core.errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """An image as the model's tower takes it."""

    pixels: NDArray[np.uint8]
    """[height, width, 3], not to be written to."""
    num_tokens: int
    """Tokens that stand for it in a prompt."""
    digest: bytes
    """Of size and pixels; equal on every machine that prepares alike."""


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image at its place in a request's tokens."""

    start: int
    """Position of its first token."""
    image: PreparedImage

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.start + self.image.num_tokens


def place_images(
    token_ids: Sequence[int], images: Sequence[PreparedImage], image_token_id: int
) -> tuple[list[int], tuple[ImageSpan, ...]]:
    """Make room for each image where the prompt has its one image token.

    Returns:
        The prompt with as many image tokens as each image takes, and where they stand.

    Raises:
        RequestError: there are more or fewer image tokens than images.
    """
    places = [i for i, token_id in enumerate(token_ids) if token_id == image_token_id]
    if len(places) != len(images):
        raise RequestError(
            f"the prompt has {len(places)} image tokens (id {image_token_id}) for {len(images)} "
            "images; give one for each image, where it stands",
            field="images",
        )
    placed: list[int] = []
    spans: list[ImageSpan] = []
    done = 0
    for place, image in zip(places, images, strict=True):
        placed += token_ids[done:place]
        spans.append(ImageSpan(len(placed), image))
        placed += [image_token_id] * image.num_tokens
        done = place + 1
    return [*placed, *token_ids[done:]], tuple(spans)


def no_tower(num_images: int) -> RequestError:
    """What is said to a request with images where the model takes none."""
    return RequestError(
        f"images: {num_images} were given, allowed are 0, as this model has no vision tower; "
        "send text only",
        field="images",
    )


def content_of(spans: Sequence[ImageSpan], start: int, stop: int) -> bytes:
    """What tells the tokens at positions start .. stop-1 apart from those of other images.

    Empty where no image reaches into them.
    """
    return b"".join(
        (span.start - start).to_bytes(8, "little", signed=True) + span.image.digest
        for span in spans
        if span.start < stop and start < span.end
    )
