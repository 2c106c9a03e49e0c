"""A model that wants codes gets the bytes of the file, under any of the released names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.layers.packed import checkpoint_views, empty_parameter
from deepinfer_core.weights.quant.schemes import decode, keep_codes
from deepinfer_core.weights.safetensors_reader import SafetensorsSource
from deepinfer_core.weights.strict import check_names
from safetensors.torch import save_file
from torch import Tensor, nn

ROWS, COLUMNS = 70, 96
BLOCK = (32, 32)


def random_bytes(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


class Table(nn.Module):
    """Rows of codes with one scale for 32 of them, as an engram has."""

    def __init__(self, **dtypes: str) -> None:
        super().__init__()
        kinds = {"weight": "float8_e4m3fn", "scale": "float8_e8m0fnu"} | dtypes
        self.weight = empty_parameter(ROWS, COLUMNS, dtype=kinds["weight"])
        self.scale = empty_parameter(ROWS, COLUMNS // 32, dtype=kinds["scale"])


class Model(nn.Module):
    def __init__(self, **dtypes: str) -> None:
        super().__init__()
        self.embed = Table(**dtypes)


@pytest.fixture
def stored(tmp_path: Path) -> dict[str, Tensor]:
    tensors = {
        "embed.weight": random_bytes(ROWS, COLUMNS).view(torch.float8_e4m3fn),
        "embed.scale": random_bytes(ROWS, COLUMNS // 32).view(torch.float8_e8m0fnu),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tensors


def load(directory: Path, model: nn.Module) -> None:
    views = checkpoint_views(model)
    kept = keep_codes(decode(SafetensorsSource(directory), BLOCK), views)
    for name in check_names(views, kept.entries, lambda name: False, directory):
        kept.read_into(name, views[name])


@pytest.mark.parametrize("scale_dtype", ["float8_e8m0fnu", "uint8"])
def test_codes_and_scales_are_loaded_byte_by_byte(
    scale_dtype: str, stored: dict[str, Tensor], tmp_path: Path
) -> None:
    model = Model(scale=scale_dtype)
    load(tmp_path, model)
    for name, view in checkpoint_views(model).items():
        assert torch.equal(view.view(torch.uint8), stored[name].view(torch.uint8))


def test_without_quantisation_in_the_configuration_too(
    stored: dict[str, Tensor], tmp_path: Path
) -> None:
    source, views = SafetensorsSource(tmp_path), checkpoint_views(Model())
    names = check_names(views, source.entries, lambda name: False, tmp_path)
    assert sorted(names) == sorted(stored)


def test_numbers_of_a_table_have_a_scale_for_each_row(
    stored: dict[str, Tensor], tmp_path: Path
) -> None:
    source = decode(SafetensorsSource(tmp_path), BLOCK)
    assert list(source.entries) == ["embed.weight"]
    numbers = torch.empty(ROWS, COLUMNS)
    source.read_into("embed.weight", numbers)
    codes = stored["embed.weight"].float()
    exponents = stored["embed.scale"].view(torch.uint8).int() - 127
    for row in range(ROWS):
        for group in range(COLUMNS // 32):
            columns = slice(32 * group, 32 * group + 32)
            expected = torch.ldexp(codes[row, columns], exponents[row, group])
            assert torch.equal(numbers[row, columns].nan_to_num(), expected.nan_to_num())


def test_scales_have_one_name_whatever_the_file_calls_them(tmp_path: Path) -> None:
    class Matrix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = empty_parameter(ROWS, COLUMNS, dtype="float8_e4m3fn")
            self.scale = empty_parameter(3, 3, dtype="float32")

    codes, scales = random_bytes(ROWS, COLUMNS).view(torch.float8_e4m3fn), torch.rand(3, 3)
    tensors = {"wq.weight": codes, "wq.weight_scale_inv": scales}
    save_file(tensors, tmp_path / "model.safetensors")
    model = nn.Module()
    model.wq = Matrix()
    load(tmp_path, model)
    assert torch.equal(model.wq.scale, scales)
    assert torch.equal(model.wq.weight.view(torch.uint8), codes.view(torch.uint8))


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        ({"scale": "int8"}, "embed.scale: wanted [70, 3] int8, found [70, 3] F8_E8M0"),
        ({"weight": "uint8"}, "embed.weight: wanted [70, 96] uint8, found [70, 96] F8_E4M3"),
    ],
)
@pytest.mark.usefixtures("stored")
def test_codes_of_another_kind_are_a_misfit(
    dtypes: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError) as caught:
        load(tmp_path, Model(**dtypes))
    assert caught.value.mismatched == [message]
