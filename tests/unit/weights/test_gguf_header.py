from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.testing.tiny_gguf import write_tiny_gguf
from deepinfer_core.weights.gguf_header import read_gguf_header


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf", "qwen3_moe", kind="Q8_0")


def open_error(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read_gguf_header(path)
    return str(caught.value)


def test_agrees_with_the_library(path: Path) -> None:
    header = read_gguf_header(path)
    reader = gguf.GGUFReader(path)
    assert {
        name: (tensor.shape, tensor.kind, tensor.offset, tensor.num_bytes)
        for name, tensor in header.tensors.items()
    } == {
        tensor.name: (
            tuple(reversed(tensor.shape.tolist())),
            tensor.tensor_type,
            tensor.data_offset,
            tensor.n_bytes,
        )
        for tensor in reader.tensors
    }
    own_keys = {key for key in reader.fields if not key.startswith("GGUF.")}
    assert header.metadata == {key: reader.fields[key].contents() for key in own_keys}


def test_every_kind_of_value(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_int16("i16", -300)
    writer.add_uint64("u64", 1 << 40)
    writer.add_float64("f64", 0.1)
    writer.add_bool("flag", True)
    writer.add_string("text", "Größe 漢字")
    writer.add_array("numbers", [1.5, 2.5])
    writer.add_array("words", ["a", "", "ß"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = read_gguf_header(tmp_path / "x.gguf").metadata
    assert metadata == {
        "general.architecture": "llama",
        "u8": 200,
        "i8": -3,
        "i16": -300,
        "u64": 1 << 40,
        "f64": 0.1,
        "flag": True,
        "text": "Größe 漢字",
        "numbers": [1.5, 2.5],
        "words": ["a", "", "ß"],
    }


def test_a_file_cut_within_its_data_names_both_sizes(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1000])
    message = open_error(path)
    assert str(path) in message
    assert f"has {len(content) - 1000:,} bytes but its header describes" in message


@pytest.mark.parametrize("size", [5, 30, 400, 5000])
def test_a_file_cut_within_its_header_says_so(size: int, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:size])
    assert f"{path}: the file ends after {size:,} bytes, within its header" in open_error(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as GGUF"),
        (b"PK\x03\x04 a zip file", "is no GGUF file: it begins b'PK\\x03\\x04'"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "is GGUF version 9; versions 2, 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is GGUF version 50331648"),
    ],
)
def test_something_else_in_the_file(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    assert message in open_error(path)


def header_with_tensor(path: Path, kind: int, width: int) -> Path:
    name = b"blk.0.attn_q.weight"
    described = struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, width, 4, kind, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + described + b"\0" * 4096)
    return path


def test_an_unknown_type_names_the_tensor_and_the_type(tmp_path: Path) -> None:
    message = open_error(header_with_tensor(tmp_path / "x.gguf", 12345, 64))
    assert "tensor blk.0.attn_q.weight is of type 12345, which is unknown" in message


def test_a_row_that_is_no_multiple_of_its_block(tmp_path: Path) -> None:
    message = open_error(header_with_tensor(tmp_path / "x.gguf", 8, 33))
    assert "tensor blk.0.attn_q.weight of Q8_0 has shape (4, 33)" in message


def test_an_array_longer_than_the_file(tmp_path: Path) -> None:
    """A corrupt length must not be allocated."""
    path = tmp_path / "x.gguf"
    pair = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 1 << 60)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)
    assert "within its header" in open_error(path)


def test_alignment_of_the_data_is_respected(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_custom_alignment(256)
    writer.add_tensor("a", np.arange(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = read_gguf_header(tmp_path / "x.gguf").tensors["a"]
    assert tensor.offset % 256 == 0
    data = (tmp_path / "x.gguf").read_bytes()[tensor.offset :][: tensor.num_bytes]
    assert np.frombuffer(data, dtype=np.float32).tolist() == list(range(8))
