from __future__ import annotations

import json
from pathlib import Path

import pytest
from deepinfer_core.testing.tiny import TINY_FAMILIES, write_tiny_checkpoint
from deepinfer_core.testing.tiny_gguf import GGUF_FAMILIES, write_tiny_gguf
from tokenizers import Tokenizer


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
def test_checkpoints_are_deterministic_by_seed(family: str, tmp_path: Path) -> None:
    first, again, other = (
        contents(write_tiny_checkpoint(tmp_path / name, family, seed=seed))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first["model.safetensors"] != other["model.safetensors"]


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_K"])
def test_gguf_files_are_deterministic_by_seed(kind: str, tmp_path: Path) -> None:
    first, again, other = (
        write_tiny_gguf(tmp_path / name, "llama", kind=kind, seed=seed).read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first != other


def test_files_are_small(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "qwen3_moe")
    assert sum(len(content) for content in contents(directory).values()) < 2_000_000


def test_any_text_goes_through_the_tokenizer_and_back(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama")
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    text = "the thing and others: Größe 漢字 🙂\n\t<|im_end|>"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids[-1] == 2
    assert len(ids) < len(text.encode())
    config = json.loads((directory / "config.json").read_text())
    assert tokenizer.get_vocab_size() < config["vocab_size"]


def test_every_gguf_family_is_a_tiny_family() -> None:
    assert GGUF_FAMILIES.keys() <= TINY_FAMILIES.keys()
