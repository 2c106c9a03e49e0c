from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.layers.rotary import compute_cos_sin
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.testing.tiny_gguf import GGUF_FAMILIES, write_tiny_gguf
from deepinfer_core.weights.checkpoint import open_checkpoint
from deepinfer_core.weights.model_info import ModelInfo, TokenizerSource


def info_of(tmp_path: Path, family: str = "llama", **options: Any) -> ModelInfo:
    return open_checkpoint(write_tiny_gguf(tmp_path / "x.gguf", family, **options)).info


@pytest.mark.parametrize("family", sorted(GGUF_FAMILIES))
def test_the_configuration_equals_that_of_the_directory(family: str, tmp_path: Path) -> None:
    ours = info_of(tmp_path, family)
    theirs = open_checkpoint(write_tiny_checkpoint(tmp_path / "hf", family)).info
    assert ours.config == theirs.config
    assert (ours.architecture, ours.model_type) == (theirs.architecture, theirs.model_type)
    assert ours.vocab_size == theirs.vocab_size == 320
    assert ours.max_position == theirs.max_position == 512
    assert ours.bos_token_id == theirs.bos_token_id == 1
    assert ours.eos_token_ids == theirs.eos_token_ids == (0, 2)
    assert ours.tokenizer_source == TokenizerSource("gguf", tmp_path / "x.gguf")
    assert theirs.tokenizer_source == TokenizerSource("hf", tmp_path / "hf")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("Q4_1", "bfloat16")],
)
def test_dtype_is_that_of_most_weights(kind: str, dtype: str, tmp_path: Path) -> None:
    assert info_of(tmp_path, kind=kind).dtype == dtype


def test_sampling_defaults_come_from_the_metadata(tmp_path: Path) -> None:
    keys = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20}
    assert info_of(tmp_path, metadata=keys).generation_defaults == {
        "temperature": 0.6,
        "top_k": 20,
    }
    assert info_of(tmp_path).generation_defaults == {}


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_comes_from_the_metadata(kind: str, tmp_path: Path) -> None:
    keys = {
        "qwen2.rope.scaling.type": kind,
        "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.scaling.original_context_length": 512,
    }
    info = info_of(tmp_path, "qwen2", metadata=keys)
    rope = info.config.rope
    assert (rope.rope_type, rope.factor, rope.original_max_position) == (kind, 4.0, 512)
    assert info.max_position == 2048


def test_a_sliding_window_comes_from_the_metadata(tmp_path: Path) -> None:
    info = info_of(tmp_path, metadata={"llama.attention.sliding_window": 24})
    assert info.config.windows == (24, 24, 24)


def test_llama3_files_carry_divisors_of_the_frequencies(tmp_path: Path) -> None:
    """Converted Llama 3.1 files have a tensor `rope_freqs.weight` instead of parameters."""
    path = write_tiny_gguf(tmp_path / "x.gguf", "llama")
    factors = np.linspace(1.0, 8.0, 8, dtype=np.float32)
    writer = gguf.GGUFWriter(tmp_path / "y.gguf", "llama")
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if key.startswith("llama."):
            writer.add_key_value(key, field.contents(), field.types[0])
    writer.add_tensor("rope_freqs.weight", factors)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(tmp_path / "y.gguf")
    assert checkpoint.info.config.rope.frequency_factors == tuple(factors.tolist())
    assert checkpoint.source is not None
    assert not any("rope" in name for name in checkpoint.source.entries)
    plain = open_checkpoint(path).info.config.rope
    cpu = torch.device("cpu")
    slow = compute_cos_sin(checkpoint.info.config.rope, 9, cpu)[8]
    torch.testing.assert_close(slow[7], compute_cos_sin(plain, 2, cpu)[1, 7])


def test_an_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError) as caught:
        open_checkpoint(tmp_path / "x.gguf")
    message = str(caught.value)
    assert "GGUF architecture 'mamba' is unknown; known: llama, qwen2, qwen3, qwen3moe" in message


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.expert_count": 8}, "a llama with experts"),
        ({"llama.rope.scaling.type": "longrope"}, "rope type 'longrope' is unknown"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    metadata: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        info_of(tmp_path, metadata=metadata)
