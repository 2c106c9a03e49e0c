"""DeepSeek-V3.2: what it adds to V3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.kv.layout import make_layout
from deepinfer_core.models.decoder import DecoderModel
from deepinfer_core.models.deepseek_v32 import DeepseekV32
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import tiny_config, write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint

PROMPT = [(7 * i) % 300 + 3 for i in range(60)]
TOP_K = 24


def load(directory: Path) -> DecoderModel:
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, reference_table(), dtype="float32")
    load_weights(model, checkpoint, device="cpu")
    return model


def logits_of(model: DecoderModel) -> torch.Tensor:
    return HandRunner(model).feed({0: PROMPT})[0]


def test_up_to_its_limit_it_computes_what_v3_does(tmp_path: Path) -> None:
    # Tensors of equal names are equal in both.
    dense = logits_of(load(write_tiny_checkpoint(tmp_path / "v3", "deepseek_v3")))
    sparse = logits_of(load(write_tiny_checkpoint(tmp_path / "v32", "deepseek_v32")))
    torch.testing.assert_close(sparse[:TOP_K], dense[:TOP_K], atol=1e-4, rtol=0)
    assert (sparse[TOP_K:] - dense[TOP_K:]).abs().amax(dim=1).min() > 1e-3


def test_a_token_takes_a_latent_row_and_an_index_key_in_one_table() -> None:
    config = tiny_config("deepseek_v32")
    with torch.device("meta"):
        parsed = DeepseekV32.read_config(RawConfig(config, "config.json"))
        model = DeepseekV32(parsed, reference_table(), dtype="bfloat16")
    layout = make_layout(model.layer_kv(), block_size=16)
    (group,) = layout.groups
    assert [kv.bytes_per_token for kv in group.layer_kvs] == [96] * 3 + [64] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_topk": 0}, "index_topk"),
        ({"index_n_heads": None}, "index_n_heads"),
        ({"index_head_dim": 8}, "index_head_dim = 8 is not at least qk_rope_head_dim, 16"),
        ({"q_lora_rank": None}, "q_lora_rank"),
    ],
)
def test_what_the_configuration_cannot_mean(changes: dict[str, Any], message: str) -> None:
    raw = RawConfig(tiny_config("deepseek_v32", **changes), "config.json")
    with pytest.raises(ModelLoadError) as caught:
        DeepseekV32.read_config(raw)
    assert message in str(caught.value)
