"""Rounding of activations, against the values of the specification."""

from __future__ import annotations

import pytest
import torch
from deepinfer_core.ops.records import make_record
from deepinfer_core.ops.reference.quant import act
from deepinfer_core.ops.reference.records import decode, encode


def test_values_of_the_specification() -> None:
    row = [.1, -.25, .3, .7, -1.3, 2.2, .05, -.9, 1.1, 0, -.02, .6, -.45, .15, .33, -2]  # fmt: skip
    q, scales = act(torch.tensor([row * 2]), "fp8_block32_ue8m0")
    expected = [.1015625, -.25, .3125, .6875, -1.25, 2.25, .05078125, -.875]  # fmt: skip
    assert (q.float() * scales)[0, :8].tolist() == expected
    assert scales.tolist() == [[2.0**-7]]


@pytest.mark.parametrize(
    ("scheme", "group"), [("fp8_block128_ue8m0", 128), ("fp8_block32_ue8m0", 32)]
)
def test_scales_are_the_smallest_powers_that_fit(scheme: str, group: int) -> None:
    x = torch.zeros(1, 2 * group)
    x[0, 3], x[0, group + 1] = 448.0 * 2**-5, 449.0
    q, scales = act(x, scheme)
    assert scales.tolist() == [[2.0**-5, 2.0]]
    assert (q[0, 3].item(), q[0, group + 1].item()) == (448.0, 224.0)
    # Zeros are divided by what 1e-4 would be.
    assert act(torch.zeros(1, group), scheme)[1].tolist() == [[2.0**-22]]


def test_activations_round_as_the_rows_of_windows_do() -> None:
    x = torch.randn(20, 96, generator=torch.Generator().manual_seed(0))
    q, scales = act(x, "fp8_block32_ue8m0")
    record = make_record("528", 96)
    assert torch.equal(
        q.float() * scales.repeat_interleave(32, 1), decode(encode(x, record), record)
    )
