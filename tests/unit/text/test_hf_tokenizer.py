"""What the files of a Hugging Face directory say together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.text.loading import load_tokenizer
from tokenizers import models, pre_tokenizers


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a vocabulary of eight words and no special tokens."""
    words = ["<unk>", "<s>", "</s>", "a", "b", "c", "d", "e"]
    vocab = {word: index for index, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(directory: Path, name: str, value: Any) -> None:
    (directory / name).write_text(json.dumps(value), encoding="utf-8")


def test_roles_are_read_as_text_or_as_objects(directory: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    write(directory, "tokenizer_config.json", {**config, "pad_token": None})
    tokenizer = load_tokenizer(directory)
    assert dict(tokenizer.special_tokens) == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.special_token_ids == {1, 2}
    assert tokenizer.decode([3, 2]) == "a"


def test_the_configuration_wins_over_the_special_tokens_map(directory: Path) -> None:
    write(directory, "special_tokens_map.json", {"bos_token": "a", "eos_token": "</s>"})
    write(directory, "tokenizer_config.json", {"bos_token": "<s>"})
    tokenizer = load_tokenizer(directory)
    assert dict(tokenizer.special_tokens) == {"bos_token": "<s>", "eos_token": "</s>"}


def test_a_role_that_the_vocabulary_lacks_adds_no_token(directory: Path) -> None:
    """A name in the configuration alone would become an id beyond the model's embedding."""
    write(directory, "tokenizer_config.json", {"eos_token": "<nowhere>"})
    tokenizer = load_tokenizer(directory)
    assert tokenizer.vocab_size == 8
    assert tokenizer.eos_token_id is None


@pytest.mark.parametrize(
    ("flags", "ids"),
    [
        ({}, [3]),
        ({"add_bos_token": True}, [1, 3]),
        ({"add_bos_token": True, "add_eos_token": True}, [1, 3, 2]),
        ({"add_bos_token": False}, [3]),
    ],
)
def test_add_flags_surround_plain_prompts_only(
    directory: Path, flags: dict[str, bool], ids: list[int]
) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", **flags}
    write(directory, "tokenizer_config.json", config)
    tokenizer = load_tokenizer(directory)
    assert tokenizer.encode("a") == ids
    assert tokenizer.encode_batch(["a"]) == [ids]
    assert tokenizer.encode("a", add_special_tokens=False) == [3]


def test_tokens_declared_beside_the_vocabulary_are_added(directory: Path) -> None:
    declared = {
        "9": {"content": "<tool>", "special": False},
        "8": {"content": "<end>", "special": True},
    }
    write(directory, "tokenizer_config.json", {"added_tokens_decoder": declared})
    tokenizer = load_tokenizer(directory)
    assert tokenizer.encode("a<tool>b<end>") == [3, 9, 4, 8]
    assert tokenizer.special_token_ids == {8}


def test_a_declared_token_of_another_id_is_an_error(directory: Path) -> None:
    declared = {"12": {"content": "<tool>", "special": False}}
    write(directory, "tokenizer_config.json", {"added_tokens_decoder": declared})
    with pytest.raises(ModelLoadError, match=r"'<tool>' is token 12, tokenizer\.json makes it 8"):
        load_tokenizer(directory)


def test_truncation_and_padding_of_the_file_are_ignored(directory: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=6)
    backend.save(str(directory / "tokenizer.json"))
    assert load_tokenizer(directory).encode("a b c") == [3, 4, 5]


@pytest.mark.parametrize(
    ("configured", "names"),
    [
        ("one", {"default": "one"}),
        ({"default": "one", "rag": "two"}, {"default": "one", "rag": "two"}),
        ([{"name": "tool_use", "template": "two"}], {"tool_use": "two"}),
        (None, {}),
    ],
)
def test_templates_of_the_configuration(
    directory: Path, configured: object, names: dict[str, str]
) -> None:
    write(directory, "tokenizer_config.json", {"chat_template": configured})
    assert dict(load_tokenizer(directory).chat_templates) == names


def test_template_files_win(directory: Path) -> None:
    write(directory, "tokenizer_config.json", {"chat_template": "old"})
    (directory / "chat_template.jinja").write_text("new", encoding="utf-8")
    (directory / "additional_chat_templates").mkdir()
    extra = directory / "additional_chat_templates" / "tool_use.jinja"
    extra.write_text("tools", encoding="utf-8")
    templates = load_tokenizer(directory).chat_templates
    assert dict(templates) == {"default": "new", "tool_use": "tools"}


def test_a_tokenizer_file_stands_for_its_directory(directory: Path) -> None:
    assert load_tokenizer(directory / "tokenizer.json").vocab_size == 8


def test_no_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json.*tokenizer\.model.*save_pretra"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelLoadError, match="does not exist"):
        load_tokenizer(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"version": "1.0"'])
def test_a_corrupt_file_is_named(directory: Path, name: str, content: str) -> None:
    (directory / name).write_text(content, encoding="utf-8")
    with pytest.raises(ModelLoadError, match=name):
        load_tokenizer(directory)


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"x": {"content": "a"}}},
        {"added_tokens_decoder": ["a"]},
        {"chat_template": [{"name": "x"}]},
        {"chat_template": {"default": 3}},
        {"additional_special_tokens": 3},
    ],
)
def test_a_configuration_of_the_wrong_shape_is_a_load_error(
    directory: Path, config: dict[str, Any]
) -> None:
    write(directory, "tokenizer_config.json", config)
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json"):
        load_tokenizer(directory)


def test_a_template_that_is_no_utf8_is_a_load_error(directory: Path) -> None:
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja"):
        load_tokenizer(directory)


def test_merges_that_make_no_token_are_a_load_error(directory: Path) -> None:
    """The library panics over them, which is no `Exception`."""
    vocab = {"a": 0, "b": 1, "ab": 2}
    tokenizers.Tokenizer(models.BPE(vocab, [("a", "b")])).save(str(directory / "tokenizer.json"))
    spec = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    del spec["model"]["vocab"]["ab"]
    write(directory, "tokenizer.json", spec)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(directory)
