from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.testing.tiny_gguf import write_tiny_gguf
from deepinfer_core.weights.checkpoint import open_checkpoint


def open_error(path: Path | str, **options: Any) -> str:
    with pytest.raises(ModelLoadError) as caught:
        open_checkpoint(path, **options)
    return str(caught.value)


def edit_json(path: Path, **changes: Any) -> None:
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: v for name, v in fields.items() if v is not None}))


def test_generation_config_gives_defaults_and_further_ends(tmp_path: Path) -> None:
    generation = {
        "eos_token_id": [7, 0],
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "max_length": 99,
    }
    directory = write_tiny_checkpoint(tmp_path, "qwen3", generation_config=generation)
    info = open_checkpoint(directory).info
    assert info.generation_defaults == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
    }
    assert info.eos_token_ids == (0, 2, 7)


def test_sampling_turned_off_means_greedy(tmp_path: Path) -> None:
    generation = {"do_sample": False, "temperature": 0.6, "top_p": 0.9}
    directory = write_tiny_checkpoint(tmp_path, "llama", generation_config=generation)
    defaults = open_checkpoint(directory).info.generation_defaults
    assert defaults == {"temperature": 0.0, "top_p": 0.9}


def test_no_generation_config(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama")
    (directory / "generation_config.json").unlink()
    info = open_checkpoint(directory).info
    assert info.generation_defaults == {}
    assert info.eos_token_ids == (2,)


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_the_checkpoints_dtype(name: str, tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama")
    edit_json(directory / "config.json", **{"torch_dtype": None, name: "bfloat16"})
    assert open_checkpoint(directory).info.dtype == "bfloat16"


def test_streaming_gives_every_tensor_in_the_checkpoints_dtype(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama", torch_dtype="bfloat16", num_shards=2)
    tensors = dict(open_checkpoint(directory).tensors())
    assert len(tensors) == 3 + 9 * 3
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())
    assert dict(open_checkpoint(directory, load_format="dummy").tensors()) == {}


def test_formats_are_told_apart(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path / "hf", "llama")
    file = write_tiny_gguf(tmp_path / "x.gguf", "llama")
    assert open_checkpoint(directory, load_format="safetensors").info.dtype == "float32"
    assert open_checkpoint(str(file), load_format="gguf").info.dtype == "float32"
    assert "is a directory; load_format gguf wants a file" in open_error(
        directory, load_format="gguf"
    )
    assert "is a file; load_format safetensors wants a directory" in open_error(
        file, load_format="safetensors"
    )
    assert open_checkpoint(file, load_format="dummy").source is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "config.json: architecture 'MambaForCausalLM'"),
        ({"architectures": None}, "architectures is missing; known: Deepseek"),
        ({"architectures": "Llama"}, "architectures = 'Llama' is not a list of str"),
        ({"dtype": "float8_e4m3fn"}, "dtype = 'float8_e4m3fn' is not one of float32"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "weights quantised with gptq cannot be read",
        ),
    ],
)
def test_what_the_configuration_cannot_mean(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama")
    edit_json(directory / "config.json", **changes)
    assert message in open_error(directory)


@pytest.mark.parametrize("content", ["", "{", "[1]", "\udcff"])
def test_a_corrupt_config_names_the_file(content: str, tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama")
    path = directory / "config.json"
    path.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    assert str(path) in open_error(directory)


def test_an_empty_directory(tmp_path: Path) -> None:
    assert open_error(tmp_path) == f"{tmp_path}: no config.json"


@pytest.mark.parametrize("path", ["/nowhere/at/all", "models/absent.gguf", "absent", "../a/b"])
def test_nothing_there(path: str) -> None:
    """A misspelt file must not be looked for on the hub."""
    assert f"{path}: no such file or directory, and no hub id (owner/name)" in open_error(path)


def test_a_hub_id_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'deepinfer-core[hub]'" in open_error("owner/model")


def fake_hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    def snapshot_download(repo_id: str, **options: Any) -> str:
        calls.append({"repo_id": repo_id, **options})
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    hub = types.ModuleType("huggingface_hub")
    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return calls


def test_a_hub_id_is_fetched_at_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_hub(monkeypatch, write_tiny_checkpoint(tmp_path, "llama"))
    assert open_checkpoint("owner/model", revision="v2").info.path == tmp_path
    open_checkpoint("owner/model", load_format="dummy")
    assert [(call["repo_id"], call["revision"]) for call in calls] == [
        ("owner/model", "v2"),
        ("owner/model", None),
    ]
    assert ["*.safetensors" in call["allow_patterns"] for call in calls] == [True, False]


def test_the_hubs_refusal_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, OSError("404: Repository Not Found"))
    assert "owner/model: the hub gave no checkpoint: 404: Repository" in open_error("owner/model")
