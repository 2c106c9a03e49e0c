"""`deepinfer recipe` and what the plugin host finds of the package."""

import json

import pytest
from deepinfer_recipe import __version__, plugin
from deepinfer_recipe.cli import app
from typer.testing import CliRunner

RUNNER = CliRunner()
BODY = {"messages": [{"role": "user", "content": "2+2?"}], "thinking": {"type": "disabled"}}


@pytest.fixture
def request_file(tmp_path):
    path = tmp_path / "request.json"
    path.write_text(json.dumps(BODY), encoding="utf-8")
    return str(path)


def run(*arguments, text=None):
    return RUNNER.invoke(app, arguments, input=text)


@pytest.mark.parametrize(
    ("prompt_format", "prompt"),
    [
        ("v4.1", "<｜begin▁of▁sentence｜><｜User｜>2+2?<｜Assistant｜></think>\n"),
        ("v3.2", "<｜begin▁of▁sentence｜><｜User｜>2+2?<｜Assistant｜></think>\n"),
    ],
)
def test_render_prints_the_prompt(request_file, prompt_format, prompt):
    result = run("render", request_file, "--format", prompt_format)
    assert (result.exit_code, result.stdout) == (0, prompt)


def test_render_highlights_special_tokens_only(request_file):
    shown = run("render", request_file, "--color").stdout
    assert "\x1b[7m<｜User｜>\x1b[0m2+2?\x1b[7m<｜Assistant｜>" in shown


def test_render_reads_other_protocols_from_the_standard_input():
    body = json.dumps({"input": "hi", "reasoning": {"effort": "none"}})
    result = run("render", "-", "--protocol", "responses", text=body)
    assert result.stdout.endswith("<｜User｜>hi<｜Assistant｜></think>\n")


def test_encode_prints_ids(request_file, tokenizer_json, tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json, encoding="utf-8")
    result = run("encode", request_file, "--tokenizer", str(path))
    assert json.loads(result.stdout) == [0, 128803, *tokenizer.encode("2+2?"), 128804, 128822]


def test_parse_prints_events(tmp_path):
    path = tmp_path / "output.txt"
    path.write_text("why</think>so", encoding="utf-8")
    lines = [json.loads(line) for line in run("parse", str(path), "--thinking").stdout.splitlines()]
    assert [(line["text"], line["is_reasoning"]) for line in lines] == [
        ("why", "True"),
        ("so", "False"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("render", "missing.json"),
        ("render", "-", "--format", "v5"),
        ("render", "-", "--protocol", "soap"),
        ("render", "-"),
        ("encode", "-", "--tokenizer", "missing.json"),
    ],
)
def test_mistakes_are_usage_errors(arguments):
    body = json.dumps(BODY) if arguments[0] == "encode" else "{}"
    result = run(*arguments, text=body)
    assert result.exit_code == 2 and "Usage" in result.output


def test_the_plugin_offers_recipes_and_a_command():
    info = plugin.deepinfer_plugin_info()
    assert (info.name, info.version) == ("recipe", __version__)
    (recipe,) = plugin.deepinfer_recipes()
    assert "DeepseekV41ForCausalLM" in recipe.architectures
    assert recipe.load() is plugin.EngineRecipe
    (command,) = plugin.deepinfer_commands()
    assert command.name == "recipe" and command.load() is app
