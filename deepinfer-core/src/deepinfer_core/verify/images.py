"""What `verify` runs besides on a model that sees images: prompts that only images tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from deepinfer_core.images import PreparedImage
from deepinfer_core.models.vision.config import VisionConfig
from deepinfer_core.models.vision.preprocess import prepare_image
from deepinfer_core.verify.cases import Case

_FIRST_PLACE = 20
"""Tokens before the first image, which the prompts have in common."""
_SHAPE = (4, 6, 3)
"""Of images before they are enlarged to what the model takes at least."""


def image_cases(cases: Sequence[Case], vision: VisionConfig, seed: int) -> list[Case]:
    """Cases with one image, with another in its place, and with both.

    Args:
        cases: at least three, whose prompts are taken over.
    """
    rng = np.random.default_rng(seed)
    one, other = (_random_image(rng, vision) for _ in range(2))
    longest = max(cases, key=lambda case: len(case.prompt_token_ids)).prompt_token_ids
    text = tuple(token_id for token_id in longest if token_id != vision.image_token_id)
    head, tail = text[:_FIRST_PLACE], text[_FIRST_PLACE:]
    mark = (vision.image_token_id,)
    prompts = [
        ((*head, *mark, *tail), (one,)),
        ((*head, *mark, *tail), (other,)),
        ((*head, *mark, *tail[:3], *mark), (one, other)),
    ]
    return [
        replace(case, prompt_token_ids=prompt, images=images)
        for case, (prompt, images) in zip(cases, prompts, strict=False)
    ]


def _random_image(rng: np.random.Generator, vision: VisionConfig) -> PreparedImage:
    return prepare_image(rng.integers(0, 256, _SHAPE, dtype=np.uint8), vision)
