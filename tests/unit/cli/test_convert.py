"""`deepinfer convert`: a checkpoint in, a smaller one out; or a tiny one out of nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from deepinfer_core.cli import convert_cmd
from deepinfer_core.errors import ConfigError, ModelLoadError
from deepinfer_core.testing.tiny import tiny_config, write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint
from typer.testing import CliRunner


def run(*words: object) -> str:
    app = typer.Typer()
    convert_cmd.register(app)
    result = CliRunner().invoke(
        app, list(map(str, words)), env={"COLUMNS": "200"}, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


def test_the_first_layers_and_experts(tmp_path: Path) -> None:
    full = write_tiny_checkpoint(tmp_path / "full", "deepseek_v3")
    out = tmp_path / "cut"
    summary: dict[str, Any] = json.loads(run(full, out, "--layers", 2, "--experts", 4, "--json"))
    config = open_checkpoint(out).info.config
    assert (config.num_layers, config.moe.num_experts) == (2, 4)
    assert (summary["path"], summary["num_layers"], summary["num_experts"]) == (str(out), 2, 4)
    size = (out / "model.safetensors").stat().st_size
    assert 0 < size - summary["num_bytes"] < 10_000  # the header


def test_a_tiny_one_and_one_of_random_weights(tmp_path: Path) -> None:
    tiny, large = tmp_path / "tiny", tmp_path / "large"
    assert "5 layers, 8 experts, 417 tensors" in run(
        "--tiny", "deepseek_v4", "--quantize", "--seed", 3, tiny
    )
    (tiny / "model.safetensors").unlink()
    assert "2 layers, 8 experts" in run(tiny, large, "--dummy-weights", "--layers", 2)
    assert open_checkpoint(large).info.fp8_block_size == (128, 128)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a"], "not so many directories; field paths = 'a'; allowed: SRC DST, or --tiny"),
        (["a", "b", "--tiny", "llama"], "field paths = 'a b'; allowed: DST, with --tiny"),
        (["a", "--tiny", "gpt"], "no such family; field --tiny = 'gpt'; allowed: deepseek_v3,"),
        (["a", "--tiny", "llama", "--layers", "2"], "means nothing with --tiny; field --layers"),
        (
            ["a", "--tiny", "llama", "--layers", "0"],
            "with --tiny; field --layers = 0; allowed: leave it out",
        ),
        (["a", "--tiny", "llama", "--no-engrams"], "means nothing with --tiny; field --no-engrams"),
        (["a", "b", "--quantize"], "means nothing without --tiny; field --quantize = True"),
    ],
)
def test_what_means_nothing_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(*words)
    assert message in str(caught.value)


def test_a_full_place_is_refused(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path, "llama")
    for words in ([tmp_path, tmp_path], ["--tiny", "llama", tmp_path]):
        with pytest.raises(ConfigError, match="nothing is overwritten; field DST"):
            run(*words)


def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("full")
    with pytest.raises(ConfigError, match="cannot be made: Not a directory; field DST"):
        run("--tiny", "llama", tmp_path / "file" / "x")


def test_a_block_size_that_is_missing_is_named(tmp_path: Path) -> None:
    config = tiny_config("deepseek_v3", quantization_config={"quant_method": "fp8"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="weight_block_size"):
        run(tmp_path, tmp_path / "out", "--dummy-weights")


def test_help_has_examples() -> None:
    text = run("--help")
    assert "deepinfer convert ./DeepSeek-V4-Flash ./v4-6l --layers 6 --experts 32" in text
    assert "deepinfer convert --tiny deepseek_v4 --quantize ./tiny-v4" in text
