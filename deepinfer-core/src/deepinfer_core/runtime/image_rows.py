"""`ImageEncoder`: what stands in for the embeddings of image tokens, step by step.

Keeps the pixels of each row's images and, while an image is being computed, what the vision tower
made of it. Never sees a request.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer_core.images import ImageSpan, PreparedImage
from deepinfer_core.models.vision.tower import VisionTower
from deepinfer_core.runtime.batch import ImageRows
from deepinfer_core.scheduling.plan import StepPlan
from deepinfer_core.staging import to_device


class ImageEncoder:
    """Encodes each image when a step first needs a row of it.

    Args:
        tower: None: no row will ever have images.
    """

    def __init__(self, tower: VisionTower | None, device: torch.device) -> None:
        self.config = None if tower is None else tower.config
        self._tower = tower
        self._device = device
        self._spans: dict[int, Sequence[ImageSpan]] = {}
        """By row, of those that have images."""
        self._encoded: dict[bytes, Tensor] = {}
        """By digest, [num_tokens, C] of images of which not all tokens are computed yet."""

    def start_row(self, row: int, spans: Sequence[ImageSpan]) -> None:
        """Note the images of a row's new owner."""
        self.free_row(row)
        if spans:
            self._spans[row] = spans

    def free_row(self, row: int) -> None:
        """Forget the images of a row; they are encoded again if another row shows them too."""
        for span in self._spans.pop(row, ()):
            self._encoded.pop(span.image.digest, None)

    def rows_of(self, plan: StepPlan) -> ImageRows | None:
        """The rows of all image tokens that a step computes; None if there are none.

        Encodes what has not been encoded, and forgets an image once its last token is computed.
        Does not wait for the device.
        """
        if not self._spans:
            return None
        indices: list[int] = []
        embeddings: list[Tensor] = []
        passed: list[bytes] = []
        offset = 0  # of a position of the request in the step's tokens
        for row, start, num_tokens in zip(
            plan.rows, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True
        ):
            end = start + num_tokens
            for span in self._spans.get(row, ()):
                first, last = max(start, span.start), min(end, span.end)
                if first >= last:
                    continue
                rows = self._encode(span.image)
                embeddings.append(rows[first - span.start : last - span.start])
                indices += range(offset + first - start, offset + last - start)
                if last == span.end:
                    passed.append(span.image.digest)
            offset += num_tokens
        if not indices:
            return None
        for digest in passed:
            self._encoded.pop(digest, None)
        rows = to_device(indices, self._device)
        is_image = torch.zeros(offset, dtype=torch.bool, device=self._device)
        is_image.index_fill_(0, rows, True)
        return ImageRows(is_image, torch.cat(embeddings), rows)

    def _encode(self, image: PreparedImage) -> Tensor:
        encoded = self._encoded.get(image.digest)
        if encoded is None:
            assert self._tower is not None, "a model without a tower was given images"
            # Only copies from page-locked memory let the host go on.
            pixels = torch.tensor(image.pixels, pin_memory=self._device.type != "cpu")
            pixels = pixels.to(self._device, non_blocking=True)
            encoded = self._encoded[image.digest] = self._tower(pixels)
        return encoded
