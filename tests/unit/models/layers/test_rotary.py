from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinfer_core.models.layers.rotary import ROWS_PER_BLOCK, RotaryTable, compute_cos_sin
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.rope_config import RopeConfig, read_rope

CPU = torch.device("cpu")


def rope(max_position: int = 1 << 20, **scaling: Any) -> RopeConfig:
    raw = RawConfig({"rope_scaling": scaling or None}, "config.json")
    return read_rope(raw, head_dim=16, max_position=max_position)


def test_table_grows_by_powers_of_two_as_positions_are_reached() -> None:
    """A 1 M-token context costs nothing until it is used."""
    table = RotaryTable(rope())
    first = table.cos_sin(1, CPU)
    assert first.shape == (ROWS_PER_BLOCK, 16)
    assert table.cos_sin(ROWS_PER_BLOCK, CPU) is first
    grown = table.cos_sin(ROWS_PER_BLOCK + 1, CPU)
    assert grown.shape == (2 * ROWS_PER_BLOCK, 16)
    assert torch.equal(grown[:ROWS_PER_BLOCK], first)
    assert table.cos_sin(3, CPU) is grown
    assert table.cos_sin(5000, CPU).shape[0] == 8192


def test_cosines_come_before_sines() -> None:
    table = compute_cos_sin(rope(), 4, CPU)
    assert table.dtype == torch.float32
    angles = torch.arange(4.0)[:, None] / 10000 ** (torch.arange(0, 16, 2) / 16)
    torch.testing.assert_close(table, torch.cat((angles.cos(), angles.sin()), dim=-1))


@pytest.mark.parametrize("rope_type", ["linear", "dynamic", "yarn"])
def test_an_angle_depends_on_its_position_alone(rope_type: str) -> None:
    """Otherwise chunked and unchunked prefill would differ."""
    config = rope(64, rope_type=rope_type, factor=4.0)
    whole = compute_cos_sin(config, 1000, CPU)
    for length in (1, 100, 257, 999):
        assert torch.equal(compute_cos_sin(config, length, CPU), whole[:length])


def test_dynamic_scaling_begins_past_the_original_context() -> None:
    plain = compute_cos_sin(rope(64), 200, CPU)
    dynamic = compute_cos_sin(rope(64, rope_type="dynamic", factor=2.0), 200, CPU)
    torch.testing.assert_close(dynamic[:64], plain[:64])
    assert not torch.allclose(dynamic[64:], plain[64:], atol=1e-3)
    # Position p turns as in a sequence of p + 1 tokens: base * (2 * 200 / 64 - 1) ** (16 / 14).
    base = 10000 * (2.0 * 200 / 64 - 1) ** (16 / 14)
    expected = (199.0 / base ** (torch.arange(0, 16, 2) / 16)).cos()
    torch.testing.assert_close(dynamic[199, :8], expected, atol=1e-4, rtol=0)


def test_stored_factors_divide_the_frequencies() -> None:
    factors = [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0]
    plain = compute_cos_sin(rope(), 65, CPU)
    scaled = compute_cos_sin(rope(rope_type="factors", frequency_factors=factors), 65, CPU)
    torch.testing.assert_close(scaled[64, 7], plain[8, 7])
    torch.testing.assert_close(scaled[64, 0], plain[64, 0])
