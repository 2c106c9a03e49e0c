from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.weights import safetensors_reader
from deepinfer_core.weights.safetensors_reader import SafetensorsSource
from safetensors.torch import save_file

TENSORS = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(4, dtype=torch.bfloat16)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


def open_error(directory: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        SafetensorsSource(directory)
    return str(caught.value)


def test_tensors_are_read_into_place_and_converted(directory: Path) -> None:
    source = SafetensorsSource(directory)
    assert {name: entry.shape for name, entry in source.entries.items()} == {
        "a": (4,),
        "b": (2, 3),
    }
    whole = torch.zeros(4, 3, dtype=torch.float16)
    source.read_into("b", whole[1:3])
    assert torch.equal(whole[1:3].float(), TENSORS["b"])
    assert not whole[0].any()
    assert not whole[3].any()


def test_each_byte_is_read_once_file_after_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SafetensorsSource(write_tiny_checkpoint(tmp_path, "llama", num_shards=3))
    reads: list[tuple[int, int, int]] = []
    preadv = os.preadv

    def spy(file: int, buffers: list[memoryview], offset: int) -> int:
        num_read = preadv(file, buffers, offset)
        reads.append((os.fstat(file).st_ino, offset, num_read))
        return num_read

    monkeypatch.setattr(os, "preadv", spy)
    monkeypatch.setattr(safetensors_reader, "CHUNK_BYTES", 1000)
    for index, (name, entry) in enumerate(source.entries.items()):
        dtype = (torch.float32, torch.bfloat16)[index % 2]  # straight into place, and by chunks
        source.read_into(name, torch.empty(entry.shape, dtype=dtype))
    files = list(dict.fromkeys(file for file, _, _ in reads))
    assert files == [
        (tmp_path / f"model-0000{i}-of-00003.safetensors").stat().st_ino for i in (1, 2, 3)
    ]
    for file in files:
        own = [(offset, size) for inode, offset, size in reads if inode == file]
        ends = [offset + size for offset, size in own]
        assert [offset for offset, _ in own[1:]] == ends[:-1]
    data_bytes = sum(place.num_rows * place.row_bytes for place in source.places.values())
    assert sum(size for _, _, size in reads) == data_bytes


def test_rows_are_read_alone(directory: Path) -> None:
    source = SafetensorsSource(directory)
    row = torch.empty(1, 3)
    source.read_rows("b", 1, row)
    assert torch.equal(row, TENSORS["b"][1:])
    numbers = torch.empty(2, dtype=torch.float64)
    source.read_rows("a", 2, numbers)
    assert torch.equal(numbers, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (torch.float8_e8m0fnu, torch.float8_e8m0fnu),
        (torch.float8_e8m0fnu, torch.uint8),
        (torch.uint8, torch.float8_e8m0fnu),
        (torch.float8_e4m3fn, torch.float8_e4m3fn),
        (torch.int8, torch.uint8),
    ],
)
def test_codes_are_copied_as_bytes(
    stored: torch.dtype, wanted: torch.dtype, tmp_path: Path
) -> None:
    every_byte = torch.arange(256, dtype=torch.uint8).view(16, 16)
    save_file({"codes": every_byte.view(stored)}, tmp_path / "model.safetensors")
    wide = torch.empty(16, 17, dtype=wanted)
    for destination in (torch.empty(16, 16, dtype=wanted), wide[:, :16]):
        SafetensorsSource(tmp_path).read_into("codes", destination)
        assert torch.equal(destination.contiguous().view(torch.uint8), every_byte)


def test_a_file_that_shrinks_after_its_header_was_read(directory: Path) -> None:
    source = SafetensorsSource(directory)
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelLoadError, match=r"cannot read a: the file ends 5 bytes too early"):
        source.read_into("a", torch.empty(4, dtype=torch.bfloat16))


def test_an_unknown_stored_type_is_named(tmp_path: Path) -> None:
    header = b'{"x": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}'
    content = len(header).to_bytes(8, "little") + header + b"0"
    (tmp_path / "model.safetensors").write_bytes(content)
    assert "x is stored as F4; known: F64, F32" in open_error(tmp_path)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (
            {"shape": [3], "data_offsets": [0, 8]},
            "a has the shape [3] of F32, 12 bytes, but 0 to 8",
        ),
        ({"shape": [1], "data_offsets": [4, 8]}, "a begins at byte 4, allowed is 0"),
        ({"shape": [3], "data_offsets": [0, 12]}, "b begins at byte 8, allowed is 12"),
        ({"shape": [-2], "data_offsets": [0, -8]}, "the header is corrupt"),
        ({"shape": [2.0], "data_offsets": [0, 8]}, "the header is corrupt"),
    ],
)
def test_tensors_lie_end_to_end(tmp_path: Path, first: dict[str, object], message: str) -> None:
    second = {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}
    header = json.dumps({"a": {"dtype": "F32", **first}, "b": second}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(16)
    (tmp_path / "model.safetensors").write_bytes(content)
    assert message in open_error(tmp_path)


def test_a_truncated_file_names_itself_and_both_sizes(directory: Path) -> None:
    path = directory / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    message = open_error(directory)
    assert str(path) in message
    assert f"has {len(content) - 5} bytes but its header describes {len(content)}" in message


def test_a_file_cut_within_its_header_says_so(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    message = open_error(directory)
    assert str(path) in message
    assert "20 bytes, too few for its header" in message


@pytest.mark.parametrize("content", [b"", b"\x01", b"version https://git-lfs.github.com/spec/v1"])
def test_something_else_in_the_file(content: bytes, directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(content)
    assert f"{path}: the file has {len(content)} bytes" in open_error(directory)


@pytest.mark.parametrize(
    "header", [b"not json", b"[1, 2]", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [1]}}']
)
def test_a_corrupt_header(header: bytes, directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert f"{path}: the header is corrupt" in open_error(directory)


def test_a_directory_without_weights(tmp_path: Path) -> None:
    assert "no model.safetensors; other formats are not read" in open_error(tmp_path)


def test_a_shard_that_is_not_there(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama", num_shards=3)
    (directory / "model-00002-of-00003.safetensors").unlink()
    message = open_error(directory)
    assert "no model-00002-of-00003.safetensors" in message
    assert "index.json names them" in message


def test_an_index_without_a_map(directory: Path) -> None:
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}}))
    assert f"{index}: weight_map is missing" in open_error(directory)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    for name in ("x.safetensors", "y.safetensors"):
        save_file({"a": torch.ones(1)}, tmp_path / name)
    index = {"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    message = open_error(tmp_path)
    assert "a is in both" in message
    assert "x.safetensors" in message
    assert "y.safetensors" in message
