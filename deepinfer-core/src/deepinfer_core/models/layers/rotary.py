"""Rotary position embedding: the table of cosines and sines, grown as positions are reached.

Su et al. 2021, arXiv:2104.09864. The rotation itself is the op `rope.apply`. One table serves all
layers of a model. A long context costs no memory until a request gets there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer_core.models.rope_config import RopeConfig

ROWS_PER_BLOCK = 256
"""Rows computed at once, whatever the table's length: vectorised and scalar code round sines
differently, so the bits of a row must not depend on how long the table is or how it was split."""


class RotaryTable:
    """cos and sin by position.

    The angle of a position never depends on the other positions of a step. So `dynamic` scaling,
    whose base grows with the sequence, takes for position p the base of a sequence of p + 1
    tokens: chunked and unchunked prefill agree. Within the original context that is what everyone
    computes; beyond it, implementations that re-rotate a whole prompt with the base of its
    length differ from this one, and from themselves when the prompt comes in chunks.
    """

    def __init__(self, config: RopeConfig) -> None:
        self.config = config
        self._table = torch.empty(0)

    def cos_sin(self, num_positions: int, device: torch.device) -> Tensor:
        """Give a table that covers positions 0 .. num_positions - 1.

        Returns:
            [P, rotary_dim] float32 with P >= num_positions: rotary_dim / 2 cosines, then as many
            sines. The same tensor until it must grow; it doubles.
        """
        table = self._table
        if table.shape[0] < num_positions or table.device != device:
            length = max(ROWS_PER_BLOCK, 1 << (num_positions - 1).bit_length())
            self._table = table = compute_cos_sin(self.config, length, device)
        return table


def compute_cos_sin(config: RopeConfig, num_positions: int, device: torch.device) -> Tensor:
    """[num_positions, rotary_dim] float32: cosines, then sines, both times the attention factor."""
    scale = attention_factor(config)
    blocks = []
    for start in range(0, num_positions, ROWS_PER_BLOCK):
        end = start + ROWS_PER_BLOCK
        positions = torch.arange(start, end, dtype=torch.float32, device=device)
        angles = positions[:, None] * inverse_frequencies(config, positions)
        blocks.append(torch.cat((angles.cos() * scale, angles.sin() * scale), dim=-1))
    return torch.cat(blocks)[:num_positions]


def inverse_frequencies(config: RopeConfig, positions: Tensor) -> Tensor:
    """Angle per position step: [rotary_dim / 2], or [P, rotary_dim / 2] where it depends on p."""
    exponents = (
        torch.arange(0, config.rotary_dim, 2, dtype=torch.float32, device=positions.device)
        / config.rotary_dim
    )
    if config.rope_type == "dynamic":
        return 1.0 / _dynamic_base(config, positions)[:, None] ** exponents
    frequencies = 1.0 / config.theta**exponents
    if config.rope_type == "linear":
        return frequencies / config.factor
    if config.rope_type == "llama3":
        return _llama3(config, frequencies)
    if config.rope_type == "yarn":
        return _yarn(config, frequencies)
    if config.rope_type == "factors":
        return frequencies / torch.tensor(config.frequency_factors, device=positions.device)
    return frequencies


def attention_factor(config: RopeConfig) -> float:
    """What cos and sin are multiplied with; only yarn's is not 1."""
    if config.rope_type != "yarn":
        return 1.0
    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return _yarn_mscale(config.factor, config.mscale) / _yarn_mscale(
            config.factor, config.mscale_all_dim
        )
    return _yarn_mscale(config.factor, 1.0)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _dynamic_base(config: RopeConfig, positions: Tensor) -> Tensor:
    lengths = (positions + 1).clamp(min=config.max_position)
    stretch = config.factor * lengths / config.max_position - (config.factor - 1)
    return config.theta * stretch ** (config.rotary_dim / (config.rotary_dim - 2))


def _llama3(config: RopeConfig, frequencies: Tensor) -> Tensor:
    """Slow frequencies are divided by the factor, fast ones kept, those between interpolated."""
    turns = config.original_max_position * frequencies / (2 * math.pi)
    low, high = config.low_freq_factor, config.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * frequencies / config.factor + kept * frequencies


def _yarn(config: RopeConfig, frequencies: Tensor) -> Tensor:
    """Interpolate by parts (Peng et al. 2023, arXiv:2309.00071, section 3.2)."""

    def dim_of_turns(turns: float) -> float:
        """The (fractional) frequency index that makes this many turns in the original context."""
        wavelength = config.original_max_position / (turns * 2 * math.pi)
        return config.rotary_dim * math.log(wavelength) / (2 * math.log(config.theta))

    low, high = dim_of_turns(config.beta_fast), dim_of_turns(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_dim - 1)
    if low == high:
        high += 0.001  # The ramp must have a width.
    index = torch.arange(len(frequencies), dtype=torch.float32, device=frequencies.device)
    kept = 1 - ((index - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies / config.factor * (1 - kept) + frequencies * kept
