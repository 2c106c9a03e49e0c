"""`RopeConfig`: which rotary embedding a checkpoint wants, in one normalised form.

Reads the older `rope_theta` + `rope_scaling` and the newer `rope_parameters`. Knows no tensor;
the arithmetic is in `layers/rotary.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.raw_config import RawConfig

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "factors"]
"""`factors` divides each frequency by a number that the checkpoint stores (GGUF)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Parameters of the rotary embedding. Fields that a type does not use keep their default."""

    rope_type: RopeType
    theta: float
    """Base of the frequencies."""
    rotary_dim: int
    """Leading dimensions of a head that rotate; even."""
    max_position: int
    """`max_position_embeddings` as the checkpoint states it."""
    original_max_position: int
    """Context of pretraining, before the stretch; for llama3 and yarn."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    """None: derived from `factor` and the two mscales."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    frequency_factors: tuple[float, ...] = ()
    """[rotary_dim / 2], for `factors` only."""
    is_interleaved: bool = False
    """Neighbors rotate together, instead of the two halves."""

    @property
    def reachable_position(self) -> int:
        """Longest context that the scaling is meant for."""
        if self.rope_type in ("linear", "dynamic"):
            return int(self.max_position * self.factor)
        if self.rope_type == "yarn":
            return max(self.max_position, int(self.original_max_position * self.factor))
        return self.max_position


def read_rope(raw: RawConfig, *, head_dim: int, max_position: int) -> RopeConfig:
    """Normalise the rope fields of a configuration.

    Raises:
        ModelLoadError: an unknown type (lists the known ones), a missing or malformed parameter,
            an odd rotary dimension.
    """
    scaling = raw.section("rope_parameters") or raw.section("rope_scaling") or RawConfig({}, "")
    for name, value in scaling.fields.items():
        if isinstance(value, dict):
            raise ModelLoadError(
                f"{scaling.source}: {name} has its own parameters; one set for all layers is "
                "supported"
            )
    rope_type = scaling.text("rope_type", scaling.text("type", "default"))
    if rope_type not in get_args(RopeType):
        known = ", ".join(get_args(RopeType))
        raise ModelLoadError(
            f"{scaling.source}: rope type {rope_type!r} is unknown; known: {known}"
        )
    partial = scaling.number("partial_rotary_factor", raw.number("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * partial)
    if rotary_dim % 2 or rotary_dim < 4:
        raise ModelLoadError(f"{raw.source}: rotary dimension {rotary_dim} is not even, or below 4")
    return _with_scaling(
        scaling,
        rope_type,  # type: ignore[arg-type]  # just checked to be one of them
        theta=scaling.number("rope_theta", raw.number("rope_theta", 10_000.0)),
        rotary_dim=rotary_dim,
        max_position=max_position,
    )


def _with_scaling(
    scaling: RawConfig, rope_type: RopeType, *, theta: float, rotary_dim: int, max_position: int
) -> RopeConfig:
    original = scaling.integer("original_max_position_embeddings", max_position)
    # Only yarn may leave the factor to the ratio of the two contexts.
    default_factor = {"default": 1.0, "factors": 1.0, "yarn": max_position / original}
    config = RopeConfig(
        rope_type=rope_type,
        theta=theta,
        rotary_dim=rotary_dim,
        max_position=max_position,
        original_max_position=original,
        factor=(
            scaling.number("factor", default_factor[rope_type])
            if rope_type in default_factor
            else scaling.number("factor")
        ),
        low_freq_factor=scaling.number("low_freq_factor", 1.0),
        high_freq_factor=scaling.number("high_freq_factor", 4.0),
        attention_factor=scaling.optional_number("attention_factor"),
        beta_fast=scaling.number("beta_fast", 32.0) or 32.0,
        beta_slow=scaling.number("beta_slow", 1.0) or 1.0,
        mscale=scaling.number("mscale", 0.0),
        mscale_all_dim=scaling.number("mscale_all_dim", 0.0),
        truncate=scaling.flag("truncate", True),
        frequency_factors=tuple(scaling.optional_list("frequency_factors", float) or ()),
    )
    if rope_type == "factors" and len(config.frequency_factors) != rotary_dim // 2:
        raise ModelLoadError(
            f"{scaling.source}: {len(config.frequency_factors)} frequency factors for "
            f"{rotary_dim // 2} frequencies"
        )
    return config
