"""Tiny random models of every family against transformers' eager implementation, in float32."""

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
from deepinfer_core.testing.tiny import TINY_FAMILIES, write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint
from torch import Tensor

BLOCK_SIZE = 16
WINDOW = 24
"""Of the tiny families that have one."""
EDGE_LENGTHS = (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, WINDOW - 1, WINDOW, WINDOW + 1, 65)
TOLERANCE = 1e-4


def load_ours(directory: Path, dtype: str = "float32", **options: Any) -> DecoderModel:
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, reference_table(**options), dtype=dtype)
    load_weights(model, checkpoint, device="cpu")
    return model


def load_theirs(directory: Path) -> transformers.PreTrainedModel:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, 275, (length,), generator=generator).tolist()


@torch.no_grad()
def their_logits(model: transformers.PreTrainedModel, ids: list[int]) -> Tensor:
    return model(torch.tensor([ids]), use_cache=False).logits[0]


UNKNOWN_THERE = {"deepseek_v41"}
"""What transformers has not; see `test_deepseek_v41`."""


@pytest.fixture(scope="module", params=sorted(TINY_FAMILIES.keys() - UNKNOWN_THERE))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[DecoderModel, transformers.PreTrainedModel]:
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), request.param)
    return load_ours(directory), load_theirs(directory)


def test_prefill_agrees_at_block_and_window_edges(
    pair: tuple[DecoderModel, transformers.PreTrainedModel],
) -> None:
    ours, theirs = pair
    prompts = {length: prompt_of(length) for length in EDGE_LENGTHS}
    logits = HandRunner(ours, block_size=BLOCK_SIZE).feed(prompts)
    for length, ids in prompts.items():
        torch.testing.assert_close(
            logits[length], their_logits(theirs, ids), atol=TOLERANCE, rtol=0
        )


def test_token_by_token_agrees(pair: tuple[DecoderModel, transformers.PreTrainedModel]) -> None:
    ours, theirs = pair
    ids = prompt_of(WINDOW + BLOCK_SIZE + 2)
    runner = HandRunner(ours, block_size=BLOCK_SIZE)
    steps = [runner.feed({0: [token]})[0] for token in ids]
    torch.testing.assert_close(torch.cat(steps), their_logits(theirs, ids), atol=TOLERANCE, rtol=0)


def test_chunks_agree(pair: tuple[DecoderModel, transformers.PreTrainedModel]) -> None:
    ours, theirs = pair
    ids = prompt_of(61)
    runner = HandRunner(ours, block_size=BLOCK_SIZE)
    chunks = [runner.feed({0: ids[a:b]})[0] for a, b in ((0, 7), (7, 23), (23, 40), (40, 61))]
    torch.testing.assert_close(torch.cat(chunks), their_logits(theirs, ids), atol=TOLERANCE, rtol=0)


def test_greedy_ids_agree_over_64_tokens(
    pair: tuple[DecoderModel, transformers.PreTrainedModel],
) -> None:
    ours, theirs = pair
    runner = HandRunner(ours, block_size=BLOCK_SIZE, num_blocks=128)
    for key, length in enumerate((3, BLOCK_SIZE, WINDOW, 40)):
        ids = prompt_of(length, seed=1)
        output = runner.greedy(ids, 64, key=key)
        logits = their_logits(theirs, ids + output)
        assert logits[length - 1 : -1].argmax(dim=-1).tolist() == output
        assert len(set(output)) > 20, "a model that repeats itself proves little"


ROPE_VARIANTS: dict[str, dict[str, Any]] = {
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "old spelling": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "yarn with all parameters": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.5,
            "truncate": False,
        }
    },
    "yarn with its own attention factor": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "attention_factor": 0.8,
        }
    },
    "new spelling": {
        "rope_theta": None,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
    },
    "new spelling, plain": {
        "rope_theta": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 777.0},
    },
}


@pytest.mark.parametrize("variant", ROPE_VARIANTS)
def test_rope_variants_agree(variant: str, tmp_path: Path) -> None:
    overrides = dict(ROPE_VARIANTS[variant])
    fields = {"num_hidden_layers": 2, **overrides}
    directory = write_tiny_checkpoint(tmp_path, "llama", **fields)
    ids = prompt_of(200)
    logits = HandRunner(load_ours(directory)).feed({0: ids})[0]
    torch.testing.assert_close(
        logits, their_logits(load_theirs(directory), ids), atol=TOLERANCE, rtol=0
    )


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("llama", {"head_dim": 24}),
        ("llama", {"num_key_value_heads": 4}),
        ("mistral", {"sliding_window": None}),
        ("qwen2_window", {"max_window_layers": 0}),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 10,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "attention_bias": True,
            },
        ),
        ("qwen3_moe", {"norm_topk_prob": False, "mlp_only_layers": [], "decoder_sparse_step": 2}),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 20}),
    ],
)
def test_configuration_variants_agree(
    family: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    directory = write_tiny_checkpoint(tmp_path, family, **overrides)
    ids = prompt_of(50)
    logits = HandRunner(load_ours(directory)).feed({0: ids})[0]
    torch.testing.assert_close(
        logits, their_logits(load_theirs(directory), ids), atol=TOLERANCE, rtol=0
    )


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_float32(family: str, dtype: str, tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, family)
    ids = prompt_of(40)
    exact = HandRunner(load_ours(directory)).feed({0: ids})[0]
    logits = HandRunner(load_ours(directory, dtype)).feed({0: ids})[0]
    assert logits.dtype == torch.float32
    # A rounding of 2^-8 (2^-11) per operation through three layers; a router may flip a near tie.
    similarity = torch.cosine_similarity(logits, exact, dim=-1)
    assert similarity.median() > 0.999
    assert similarity.min() > 0.9
