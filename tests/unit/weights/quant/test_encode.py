"""Numbers become the codes that the released format gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from deepinfer_core.ops.reference.codes import decode_fp8, decode_mxfp4
from deepinfer_core.testing.tiny import TINY_FAMILIES, tiny_weights, write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint
from deepinfer_core.weights.quant.encode import encode_fp8, encode_mxfp4
from deepinfer_core.weights.stored import holds_codes
from safetensors.torch import load_file
from torch import Tensor

ROW = [0.1, -0.25, 0.3, 0.7, -1.3, 2.2, 0.05, -0.9, 1.1, 0, -0.02, 0.6, -0.45, 0.15, 0.33, -2] * 2
ROW_AS_FP4 = [0, -0.25, 0.25, 0.75, -1.5, 2, 0, -1, 1, 0, 0, 0.5, -0.5, 0.25, 0.25, -2] * 2


def test_fp4_takes_the_nearest_code_and_the_even_one_of_two() -> None:
    codes, scales = encode_mxfp4(torch.tensor([ROW]))
    assert scales.float().tolist() == [[0.5]]
    assert decode_mxfp4(codes.view(torch.uint8), scales.float()).tolist() == [ROW_AS_FP4]
    ties = torch.zeros(1, 32)
    ties[0, :8] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    codes, scales = encode_mxfp4(ties)
    assert scales.float().tolist() == [[1.0]]
    # The even column is the low half of a byte; codes 0 2, 2 4, 4 6, 6 7.
    assert codes.view(torch.uint8)[0, :4].tolist() == [0x20, 0x42, 0x64, 0x76]
    codes, _ = encode_mxfp4(-ties)
    assert codes.view(torch.uint8)[0, 1:4].tolist() == [0xCA, 0xEC, 0xFE]


def test_every_fp4_number_survives() -> None:
    stored = torch.arange(256, dtype=torch.uint8).view(-1, 16)
    exponents = torch.arange(16).view(-1, 1) - 5
    numbers = decode_mxfp4(stored, torch.ldexp(torch.ones(16, 1), exponents))
    numbers[:, 0] = 6 * 2.0 ** exponents[:, 0]  # else a smaller scale would do
    codes, scales = encode_mxfp4(numbers)
    assert torch.equal(scales.float(), torch.ldexp(torch.ones(16, 1), exponents))
    assert torch.equal(decode_mxfp4(codes.view(torch.uint8), scales.float()), numbers)


@pytest.mark.parametrize("powers", [False, True])
@pytest.mark.parametrize("block_size", [(128, 128), (32, 32), (1, 32)])
def test_fp8_is_within_half_a_step_of_the_largest_of_its_block(
    powers: bool, block_size: tuple[int, int]
) -> None:
    numbers = torch.randn(150, 200) * torch.logspace(-3, 2, 150).unsqueeze(1)
    codes, scales = encode_fp8(numbers, block_size, powers=powers)
    assert codes.dtype == torch.float8_e4m3fn
    assert scales.dtype == (torch.float8_e8m0fnu if powers else torch.float32)
    meant = decode_fp8(codes, scales.float(), block_size)
    bound = (
        numbers.abs() / 16
        + 2.0**-9
        * scales.float()
        .repeat_interleave(block_size[0], 0)
        .repeat_interleave(block_size[1], 1)[:150, :200]
    )
    assert ((meant - numbers).abs() <= bound).all()
    if not powers:
        largest = numbers.abs().max()
        torch.testing.assert_close(meant.abs().max(), largest, rtol=1e-6, atol=0)


def test_a_block_of_nothing_means_nothing() -> None:
    for powers in (False, True):
        codes, scales = encode_fp8(torch.zeros(3, 4), (2, 2), powers=powers)
        assert not decode_fp8(codes, scales.float(), (2, 2)).any()
    codes, scales = encode_mxfp4(torch.zeros(3, 32))
    assert not decode_mxfp4(codes.view(torch.uint8), scales.float()).any()


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
def test_a_quantised_tiny_model_means_nearly_the_plain_one(family: str, tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, family, quantize=True)
    config = json.loads((directory / "config.json").read_text())
    weights = tiny_weights(config)
    stored = load_file(directory / "model.safetensors")
    source = open_checkpoint(directory).source
    assert source is not None
    tables = {name for name, tensor in weights.items() if holds_codes(tensor)}
    assert all(torch.equal(as_bytes(stored[name]), as_bytes(weights[name])) for name in tables)
    plain = {name: tensor for name, tensor in weights.items() if name not in tables}
    assert plain.keys() == source.entries.keys() - tables
    num_coded = 0
    for name, tensor in plain.items():
        if stored[name].dtype in (torch.float8_e4m3fn, torch.int8):
            num_coded += 1
            meant = torch.empty(tensor.shape)
            source.read_into(name, meant)
            step = 2.0**-3 if stored[name].dtype == torch.int8 else 2.0**-5
            assert (meant - tensor).abs().max() < 2 * step * tensor.abs().max(), name
        else:
            assert stored[name].dtype in (torch.bfloat16, torch.float32, torch.int64), name
    is_matrix = [".proj" in name or "_proj." in name or ".w" in name for name in plain]
    assert num_coded > sum(is_matrix) / 2
