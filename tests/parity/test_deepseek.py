"""The DeepSeek families against transformers where they are special.

At the edges of windows, groups and choices, over long prompts, and in chunks of many sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from deepinfer_core.models.decoder import DecoderModel
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint
from torch import Tensor

TOLERANCE = 2e-5
"""Of the largest logit."""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "v3": ("deepseek_v3", {}),
    "v3 without query latents": ("deepseek_v3", {"q_lora_rank": None}),
    "v32": ("deepseek_v32", {}),
    "v4 flash": ("deepseek_v4", {}),
    "v4 pro": (
        "deepseek_v4",
        {"compress_ratios": [128, 128, 4, 128, 4, 0], "num_hash_layers": 3, "o_groups": 4},
    ),
}
LENGTHS = (3, 4, 5, 23, 24, 25, 27, 28, 127, 128, 129, 259)
"""Around a group of 4, the window and choice of 24, seven groups (one more than are chosen), and a
group of 128."""


def tokens(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, 275, (length,), generator=generator).tolist()


@pytest.fixture(scope="module", params=MODELS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[DecoderModel, transformers.PreTrainedModel]:
    family, changes = MODELS[request.param]
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), family, **changes)
    return load_ours(directory), load_theirs(directory)


def load_ours(directory: Path) -> DecoderModel:
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, reference_table(), dtype="float32")
    load_weights(model, checkpoint, device="cpu")
    return model


def load_theirs(directory: Path) -> transformers.PreTrainedModel:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


@torch.no_grad()
def their_logits(model: transformers.PreTrainedModel, ids: list[int]) -> Tensor:
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def assert_close(found: Tensor, expected: Tensor) -> None:
    bound = TOLERANCE * expected.abs().max().item()
    torch.testing.assert_close(found, expected, atol=bound, rtol=0)


def test_prompts_of_every_kind_of_length_in_one_batch(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    prompts = {length: tokens(length) for length in LENGTHS}
    logits = HandRunner(ours, num_blocks=128).feed(prompts)
    for length, ids in prompts.items():
        assert_close(logits[length], their_logits(theirs, ids))


@pytest.mark.parametrize("size", [1, 3, 7, 128, 200])
def test_chunks(pair: tuple[Any, Any], size: int) -> None:
    ours, theirs = pair
    ids = tokens(140 if size == 1 else 300, seed=size)
    runner = HandRunner(ours)
    chunks = [runner.feed({0: ids[at : at + size]})[0] for at in range(0, len(ids), size)]
    assert_close(torch.cat(chunks), their_logits(theirs, ids))


@pytest.mark.parametrize("pair", ["v3", "v3 without query latents"], indirect=True)
@pytest.mark.parametrize("min_queries", [1, 25, 10**6], ids=["expanded", "both", "absorbed"])
def test_both_forms_of_latent_attention(
    pair: tuple[Any, Any], min_queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    for layer in ours.model.layers:
        monkeypatch.setattr(layer.self_attn.core, "min_queries", min_queries)
    prompts = {length: tokens(length, seed=7) for length in LENGTHS}
    expected = {length: their_logits(theirs, ids) for length, ids in prompts.items()}
    runner = HandRunner(ours, num_blocks=128)
    first = runner.feed({length: ids[: length // 2] for length, ids in prompts.items()})
    rest = runner.feed({length: ids[length // 2 :] for length, ids in prompts.items()})
    for length in LENGTHS:
        assert_close(torch.cat([first[length], rest[length]]), expected[length])
