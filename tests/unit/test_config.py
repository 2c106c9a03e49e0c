"""The configuration tree: names, values, and messages that say what would be accepted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deepinfer_core.config import FIELD_SECTIONS, SECTIONS, EngineConfig, nest_fields
from deepinfer_core.errors import ConfigError


def test_flat_names_are_unique_over_all_sections() -> None:
    counts = Counter(name for cls in SECTIONS.values() for name in cls.model_fields)
    assert [name for name, count in counts.items() if count > 1] == []
    assert set(EngineConfig.model_fields) == set(SECTIONS)


def test_every_field_is_documented() -> None:
    fields = [field for cls in SECTIONS.values() for field in cls.model_fields.items()]
    assert [name for name, field in fields if not field.description] == []


def test_flat_names_go_to_their_sections() -> None:
    config = EngineConfig.from_flat("m", dtype="float16", max_num_seqs=3, kernels={"a": ["b"]})
    assert config.model.dtype == "float16"
    assert config.scheduler.max_num_seqs == 3
    assert config.device.kernels == {"a": ("b",)}


def test_a_path_object_is_a_model() -> None:
    assert EngineConfig.from_flat(Path("a/b")).model.model == "a/b"  # type: ignore[arg-type]


BAD: dict[str, list[Any]] = {
    "model": ["", None, 3],
    "tokenizer": ["", 3],
    "chat_template": ["", 3],
    "revision": [3],
    "dtype": ["int8", None],
    "load_format": ["pickle"],
    "quantization": ["fp8", True],
    "max_model_len": [0, True, "8", 8.0],
    "generation_config": ["yes", True],
    "block_size": [0, 1025, True, "16", None],
    "memory_fraction": [0.0, 1.1, float("nan"), "0.5", True],
    "num_blocks": [1, True],
    "prefix_caching": [1, "yes", None],
    "kv_format": ["", 584, None],
    "bounded_replay": [1, "yes"],
    "decoder_replay": [0, None],
    "max_num_seqs": [0, 65537, True, "3"],
    "max_num_batched_tokens": [0, False],
    "policy": ["lifo"],
    "overlap": [0, "no"],
    "kind": ["", 3, None],
    "num_threads": [0, True],
    "kernels": [{"a": 3}, ["a"], {3: "a"}, None],
    "batch_invariant": [1],
    "deterministic": ["x"],
    "strict": [0],
    "cache_dir": [3],
    "proposer": ["", 3, None],
    "num_drafts": [0, 16, True, "4"],
    "draft_model": [3],
    "draft_guard": [1, "yes"],
    "grammar_backend": ["", 3, None],
    "compile_timeout_s": [0, -1.0, "1", None],
    "max_grammars": [0, True, "4"],
    "max_whitespace": [-1, 65, True, None],
    "thinking_start": ["", 3, None],
    "thinking_end": ["", 3, None],
    "plugins": ["a", [3]],
    "block": ["a", [3], None],
}


def test_the_table_covers_every_field() -> None:
    assert set(BAD) == set(FIELD_SECTIONS)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_bad_values_are_refused_by_field_value_and_rule(name: str, value: Any) -> None:
    tree = {"model": {"model": "m"}}
    section = FIELD_SECTIONS[name]
    tree = {**tree, section: {**tree.get(section, {}), name: value}}
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_tree(tree, sources={f"{section}.{name}": "a test"})
    error = caught.value
    assert error.field is not None and error.field.startswith(f"{section}.{name}")
    assert error.allowed
    assert error.source == "a test"


def test_an_unknown_name_comes_with_the_likely_one() -> None:
    with pytest.raises(ConfigError, match="unknown field max_num_seq, did you mean max_num_seqs"):
        EngineConfig.from_flat("m", max_num_seq=3)
    with pytest.raises(ConfigError, match="did you mean block_size"):
        EngineConfig.from_tree({"model": {"model": "m"}, "cache": {"blok_size": 8}})
    with pytest.raises(ConfigError, match="did you mean scheduler"):
        EngineConfig.from_tree({"model": {"model": "m"}, "schedule": {}})
    with pytest.raises(ConfigError, match="unknown field zzz;"):
        nest_fields({"zzz": 1})


@pytest.mark.parametrize("tree", [{}, {"model": {}}])
def test_a_missing_model_says_what_to_give(tree: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"was not given.*A Hugging Face directory, a GGUF file"):
        EngineConfig.from_tree(tree)


@pytest.mark.parametrize("tree", [{"model": "m"}, {"model": {"model": "m"}, "cache": 3}])
def test_a_section_that_is_none_is_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EngineConfig.from_tree(tree)


def test_a_configuration_cannot_change() -> None:
    config = EngineConfig.from_flat("m")
    with pytest.raises(Exception, match="frozen"):
        config.cache.block_size = 3  # type: ignore[misc]
