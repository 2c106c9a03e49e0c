"""`SeeingModel`: a causal language model that has a vision tower, where its checkpoint has one."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from deepinfer_core.models.causal import CausalModel, SizedConfig
from deepinfer_core.models.vision.config import VisionConfig
from deepinfer_core.models.vision.tower import VisionTower
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import ImageRows


class SeeingConfig(SizedConfig, Protocol):
    """What a model with a tower needs to know."""

    @property
    def vision(self) -> VisionConfig | None:
        """None: the checkpoint comes without a tower."""
        ...


class SeeingModel(CausalModel):
    """Implements `models.interface.SeesImages`.

    Args and errors are those of `CausalModel`.
    """

    def __init__(self, config: SeeingConfig, ops: OpTable, *, dtype: str) -> None:
        super().__init__(config, ops, dtype=dtype)
        self.vision: VisionTower | None = None
        if config.vision is not None:
            self.vision = VisionTower(ops, config.vision, config.hidden_size, dtype=dtype)

    @staticmethod
    def stored_name(name: str) -> str:
        """The released name of a parameter."""
        return VisionTower.stored_name(name)

    @staticmethod
    def put_images(embedded: Tensor, images: ImageRows | None) -> Tensor:
        """[T, C]: embeddings of tokens, and of images where these stand."""
        if images is None:
            return embedded
        return embedded.index_copy(0, images.rows, images.embeddings)
