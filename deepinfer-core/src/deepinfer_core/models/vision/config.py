"""`VisionConfig`: what a checkpoint says of its vision tower. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.raw_config import RawConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Everything that preparing images and building the tower needs."""

    image_token_id: int
    """Stands in a prompt for each row that the tower gives."""
    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    patch_size: int
    """Side of a patch in pixels."""
    merge_size: int
    """Side of the square of patches that one row stands for."""
    rope_theta: float
    max_image_tokens: int
    """Of one image, marks included."""
    min_pixels: int
    """Smaller images are enlarged."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


def read_vision_config(raw: RawConfig) -> VisionConfig | None:
    """Read `vision_config` of a released configuration; None where there is none.

    Raises:
        ModelLoadError: a field is missing or malformed.
    """
    vision = raw.section("vision_config")
    if vision is None:
        return None
    hidden_size, num_heads = vision.size("hidden_size"), vision.size("num_attention_heads")
    if hidden_size % (4 * num_heads):
        # A head is cut in halves for rows and columns, and each rotates in pairs.
        wanted = f"a divisor of hidden_size / 4 = {hidden_size / 4:g}"
        raise vision.malformed("num_attention_heads", num_heads, wanted)
    max_image_tokens = vision.size("max_image_tokens")
    if max_image_tokens < 4:
        raise vision.malformed("max_image_tokens", max_image_tokens, "at least 4")
    if (ratio := vision.optional_number("max_wh_ratio")) is not None:
        raise ModelLoadError(f"{vision.source}: max_wh_ratio = {ratio:g}; only null is supported")
    return VisionConfig(
        image_token_id=raw.integer("image_token_id"),
        num_layers=vision.integer("num_hidden_layers"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        intermediate_size=vision.size("intermediate_size"),
        patch_size=vision.size("patch_size"),
        merge_size=vision.size("downsample_ratio"),
        rope_theta=vision.number("rope_theta"),
        max_image_tokens=max_image_tokens,
        min_pixels=vision.size("min_pixels"),
    )
