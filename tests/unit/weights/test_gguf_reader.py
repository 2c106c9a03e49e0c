from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.testing.tiny import tiny_config, tiny_weights
from deepinfer_core.testing.tiny_gguf import GGUF_FAMILIES, write_tiny_gguf
from deepinfer_core.weights import gguf_reader
from deepinfer_core.weights.checkpoint import open_checkpoint
from deepinfer_core.weights.gguf_header import GGUFHeader, GGUFTensor

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
TOLERANCES = {"F32": 0.0, "F16": 1e-3, "BF16": 1e-2, "Q8_0": 5e-3, "Q5_0": 0.05, "Q5_1": 0.05}
"""Largest error relative to the largest value; 4 bits keep a step of an eighth."""


@pytest.mark.parametrize("family", sorted(GGUF_FAMILIES))
def test_names_and_rows_are_those_of_hugging_face(family: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "x.gguf", family))
    expected = tiny_weights(tiny_config(family))
    tensors = dict(checkpoint.tensors())
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name


def test_rotary_rows_of_biases_are_put_back_too(tmp_path: Path) -> None:
    overrides = {"attention_bias": True}
    path = write_tiny_gguf(tmp_path / "x.gguf", "llama", **overrides)
    expected = tiny_weights(tiny_config("llama", **overrides))
    for name, tensor in open_checkpoint(path).tensors():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantised_tensor_is_near_its_original(kind: str, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "x.gguf", "llama", kind=kind)
    checkpoint = open_checkpoint(path)
    assert checkpoint.source is not None
    name = "model.layers.1.self_attn.q_proj.weight"
    assert checkpoint.source.entries[name].dtype == kind
    tensor = torch.empty(64, 64)
    checkpoint.source.read_into(name, tensor)
    expected = tiny_weights(tiny_config("llama"))[name]
    error = (tensor - expected).abs().max() / expected.abs().max()
    assert error <= TOLERANCES.get(kind, 0.13)


@pytest.mark.parametrize("kind", K_QUANTS)
def test_k_quants_decode_as_the_library_does(kind: str, tmp_path: Path) -> None:
    path = write_tiny_gguf(
        tmp_path / "x.gguf", "qwen2", kind=kind, hidden_size=256, num_hidden_layers=1
    )
    tensors = dict(open_checkpoint(path).tensors())
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name == "blk.0.attn_q.weight":
            assert tensor.tensor_type.name == kind
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    found = tensors["model.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(found, torch.from_numpy(expected).bfloat16())
    assert 0.3 < found.float().std() * 16 < 3.0


def test_tensors_are_decoded_in_bounded_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A big embedding must not exist as float32 beside its final form."""
    path = write_tiny_gguf(tmp_path / "x.gguf", "llama", kind="Q8_0")
    whole = dict(open_checkpoint(path).tensors())
    sizes: list[int] = []
    decode_rows = gguf_reader.decode_rows

    def spy(*args: Any) -> torch.Tensor:
        rows = decode_rows(*args)
        sizes.append(rows.numel())
        return rows

    monkeypatch.setattr(gguf_reader, "decode_rows", spy)
    monkeypatch.setattr(gguf_reader, "CHUNK_ELEMENTS", 7 * 64)
    chunked = dict(open_checkpoint(path).tensors())
    assert max(sizes) == 7 * 64
    assert all(torch.equal(chunked[name], whole[name]) for name in whole)


def test_an_undecodable_type_names_tensor_and_type(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "x.gguf", "llama")
    writer = gguf.GGUFWriter(tmp_path / "y.gguf", "llama")
    for key, value in (("context_length", 64), ("embedding_length", 4), ("block_count", 1)):
        writer.add_uint32(f"llama.{key}", value)
    writer.add_head_count(1)
    writer.add_feed_forward_length(8)
    writer.add_tensor("token_embd.weight", np.zeros((8, 4), dtype=np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((4, 4), dtype=np.float64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError) as caught:
        open_checkpoint(tmp_path / "y.gguf")
    assert "cannot be decoded: blk.0.attn_q.weight is F64" in str(caught.value)
    open_checkpoint(path)


def test_unknown_tensors_keep_their_name(tmp_path: Path) -> None:
    """So that strict loading reports them as the file spells them."""
    path = write_tiny_gguf(tmp_path / "x.gguf", "llama")
    names = ("blk.0.ssm_conv1d.weight", "mystery.weight", "rope", "blk.0.attn_norm.weight")
    tensor = GGUFTensor((4, 4), gguf.GGMLQuantizationType.F32, 0)
    source = gguf_reader.GGUFSource(GGUFHeader(path, {}, dict.fromkeys(names, tensor)))
    assert list(source.entries) == [*names[:3], "model.layers.0.input_layernorm.weight"]
