"""Which of flag, environment, file and default a value came from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from deepinfer_core.config import FIELD_SECTIONS, EngineConfig
from deepinfer_core.config_sources import ENV_FIELDS, explain, resolve_config
from deepinfer_core.errors import ConfigError

FLAGS = {"model": "m"}


@pytest.fixture
def write_file(tmp_path: Path):
    def write(text: str) -> Path:
        file = tmp_path / "engine.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def test_flag_over_environment_over_file_over_default(write_file) -> None:
    file = write_file("max_num_seqs = 1\nblock_size = 1\npolicy = 'priority'\n")
    resolved = resolve_config(
        file=file,
        env={"DEEPINFER_MAX_NUM_SEQS": "2", "DEEPINFER_BLOCK_SIZE": "2", "HOME": "/"},
        flags={**FLAGS, "max_num_seqs": 3, "policy": None},
    )
    assert resolved.config.scheduler.max_num_seqs == 3
    assert resolved.config.cache.block_size == 2
    assert resolved.config.scheduler.policy == "priority"
    assert resolved.sources["scheduler.max_num_seqs"] == "flag --max-num-seqs"
    assert resolved.sources["cache.block_size"] == "environment DEEPINFER_BLOCK_SIZE"
    assert resolved.sources["scheduler.policy"] == f"file {file}"
    assert resolved.sources["model.dtype"] == "default"


def test_nothing_given_is_the_default_tree() -> None:
    resolved = resolve_config(env={}, flags=FLAGS)
    assert resolved.config == EngineConfig.from_flat("m")
    assert set(resolved.sources) == {f"{s}.{n}" for n, s in FIELD_SECTIONS.items()}


def test_sections_and_flat_names_of_a_file_are_the_same(write_file) -> None:
    nested = write_file(
        '[model]\nmodel = "m"\n[cache]\nblock_size = 8\n[device.kernels]\n"norm.rms" = ["a", "b"]\n'
    )
    one = resolve_config(file=nested, env={}).config
    flat = write_file('model = "m"\nblock_size = 8\n[kernels]\n"norm.rms" = ["a", "b"]\n')
    assert resolve_config(file=flat, env={}).config == one
    assert one.device.kernels == {"norm.rms": ("a", "b")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[cache]\nblok_size = 1", "did you mean block_size"),
        ("[cach]\nblock_size = 1", "did you mean cache"),
        ("blok_size = 1", "did you mean block_size"),
        ("cache = 3", r"cache is a section: write its fields under \[cache\]"),
        ('[cache]\ndtype = "float16"', r"dtype belongs to the section \[model\], not to \[cache\]"),
        ("block_size = 1\n[cache]\nblock_size = 2", "block_size is set twice"),
        ("block_size =", "is no TOML"),
        ("block_size = '16'", "must be a whole number, not str"),
        ("block_size = true", "must be a whole number, not bool"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(write_file, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        resolve_config(file=write_file(text), env={}, flags=FLAGS)
    assert "engine.toml" in str(caught.value)


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read.*nowhere\.toml"):
        resolve_config(file=tmp_path / "nowhere.toml", env={}, flags=FLAGS)
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"no TOML.*bad\.toml"):
        resolve_config(file=tmp_path / "bad.toml", env={}, flags=FLAGS)


def test_every_field_has_one_variable() -> None:
    assert sorted(ENV_FIELDS.values()) == sorted(FIELD_SECTIONS)


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("MODEL", "123", "123"),
        ("REVISION", "true", "true"),
        ("DTYPE", "bfloat16", "bfloat16"),
        ("MAX_MODEL_LEN", "4096", 4096),
        ("MAX_MODEL_LEN", "null", None),
        ("MEMORY_FRACTION", "0.25", 0.25),
        ("MEMORY_FRACTION", "1", 1.0),
        ("PREFIX_CACHING", "false", False),
        ("PREFIX_CACHING", "Off", False),
        ("PREFIX_CACHING", "0", False),
        ("OVERLAP", "YES", True),
        ("OVERLAP", "1", True),
        ("MAX_NUM_SEQS", "1", 1),
        ("BLOCK", "a, b", ("a", "b")),
        ("BLOCK", '["a", "b"]', ("a", "b")),
        ("BLOCK", "12", ("12",)),
        ("PLUGINS", "", ()),
        ("PLUGINS", "null", None),
        (
            "KERNELS",
            '{"norm.rms": ["a", "b"], "gemm.*": "c"}',
            {"norm.rms": ("a", "b"), "gemm.*": "c"},
        ),
    ],
)
def test_values_of_the_environment_parse_as_their_field(
    variable: str, text: str, value: object
) -> None:
    name = f"DEEPINFER_{variable}"
    resolved = resolve_config(env={"DEEPINFER_MODEL": "m", name: text})
    field = ENV_FIELDS[name]
    found = getattr(getattr(resolved.config, FIELD_SECTIONS[field]), field)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("DTYPE", "int8"),
        ("MAX_NUM_SEQS", "many"),
        ("MAX_NUM_SEQS", "0"),
        ("MAX_NUM_SEQS", "true"),
        ("MAX_NUM_SEQS", "1.0"),
        ("MAX_NUM_SEQS", ""),
        ("MAX_NUM_SEQS", "null"),
        ("OVERLAP", "2"),
        ("OVERLAP", "maybe"),
        ("MEMORY_FRACTION", "NaN"),
        ("MEMORY_FRACTION", "true"),
        ("KERNELS", "a=b"),
        ("TOKENIZER", ""),
    ],
)
def test_a_value_that_does_not_parse_is_refused(variable: str, text: str) -> None:
    """Ignoring it would run another configuration than the one asked for."""
    name = f"DEEPINFER_{variable}"
    with pytest.raises(ConfigError, match="does not parse") as caught:
        resolve_config(env={name: text}, flags=FLAGS)
    error = caught.value
    assert (error.value, error.source) == (text, f"environment {name}")
    assert error.allowed and error.field == f"{FIELD_SECTIONS[ENV_FIELDS[name]]}.{ENV_FIELDS[name]}"


def test_an_unknown_variable_is_refused_with_the_likely_one() -> None:
    with pytest.raises(ConfigError, match="DEEPINFER_DTYP, did you mean DEEPINFER_DTYPE"):
        resolve_config(env={"DEEPINFER_DTYP": "x"}, flags=FLAGS)


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_MAX_NUM_SEQS", "5")
    assert resolve_config(flags=FLAGS).config.scheduler.max_num_seqs == 5


def test_a_bad_flag_is_named_as_it_is_written() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_config(env={}, flags={**FLAGS, "max_num_seqs": 0})
    assert caught.value.source == "flag --max-num-seqs"
    with pytest.raises(ConfigError, match="unknown field max_seqs"):
        resolve_config(env={}, flags={**FLAGS, "max_seqs": 1})


def test_explain_has_a_row_for_every_field() -> None:
    resolved = resolve_config(env={"DEEPINFER_DTYPE": "float16"}, flags=FLAGS)
    rows = {row.path: row for row in explain(resolved)}
    assert set(rows) == set(resolved.sources)
    assert all(row.doc and "\n" not in row.doc for row in rows.values())
    row = rows["model.dtype"]
    assert (row.value, row.source) == ("float16", "environment DEEPINFER_DTYPE")
    assert rows["cache.block_size"].value == 16
