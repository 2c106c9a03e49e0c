"""Columns of a matrix of codes: each row is read once, though scales are of whole blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deepinfer_core.parallel.mesh import Share
from deepinfer_core.weights import shares
from deepinfer_core.weights.quant.fp8_block import Fp8Block
from deepinfer_core.weights.quant.source import QuantizedSource
from deepinfer_core.weights.safetensors_reader import SafetensorsSource
from safetensors.torch import save_file


def test_rows_of_codes_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.randint(-8, 8, (400, 64)).float()
    scales = torch.ones(4, 1)
    tensors = {"x.weight": numbers.to(torch.float8_e4m3fn), "x.weight_scale_inv": scales}
    save_file(tensors, tmp_path / "model.safetensors")
    rows: list[int] = []
    read_rows = SafetensorsSource.read_rows

    def spy(
        source: SafetensorsSource, name: str, first_row: int, destination: torch.Tensor
    ) -> None:
        if name == "x.weight":
            rows.extend(range(first_row, first_row + len(destination)))
        read_rows(source, name, first_row, destination)

    monkeypatch.setattr(SafetensorsSource, "read_rows", spy)
    monkeypatch.setattr(shares, "CHUNK_ELEMENTS", 200 * 64)  # one block of 128 rows, and some more
    source = QuantizedSource(SafetensorsSource(tmp_path), [Fp8Block((128, 128))])
    part = torch.empty(400, 32)
    shares.read_share(source, "x.weight", Share(1, 2, axis=1), part)
    assert torch.equal(part, numbers[:, 32:])
    assert rows == list(range(400))
