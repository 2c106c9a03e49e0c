"""`SeeingModel`: a causal language model that has a vision tower, where its checkpoint has one."""

from __future__ import annotations

from torch import Tensor

from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.vision.config import VisionConfig
from deepinfer_core.models.vision.tower import VisionTower
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import ImageRows


class SeeingModel(CausalModel):
    """Implements `models.interface.SeesImages`.

    Args:
        vision: None: the checkpoint comes without a tower.
        dtype: as of `CausalModel`, of the tower, too.
    """

    def __init__(
        self,
        ops: OpTable,
        *,
        vision: VisionConfig | None,
        vocab_size: int,
        hidden_size: int,
        dtype: str,
    ) -> None:
        super().__init__(ops, vocab_size=vocab_size, hidden_size=hidden_size, dtype=dtype)
        self.vision: VisionTower | None = None
        if vision is not None:
            self.vision = VisionTower(ops, vision, hidden_size, dtype=dtype)

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
