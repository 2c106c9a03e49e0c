"""A token's logits, bit by bit, must not depend on chunking or on what else is in the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import TINY_FAMILIES, write_tiny_checkpoint
from deepinfer_core.text.loading import load_tokenizer
from deepinfer_core.weights.checkpoint import open_checkpoint


@pytest.fixture(params=sorted(TINY_FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def load_invariant(directory: Path, family: str, dtype: str) -> CausalModel:
    checkpoint = open_checkpoint(write_tiny_checkpoint(directory, family))
    model = build_model(checkpoint.info, reference_table(batch_invariant=True), dtype=dtype)
    load_weights(model, checkpoint, device="cpu", vocabulary=load_tokenizer(directory))
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_chunks_batches_and_single_tokens_give_the_same_bits(
    family: str, dtype: str, tmp_path: Path
) -> None:
    model = load_invariant(tmp_path, family, dtype)
    ids = torch.randint(3, 275, (53,), generator=torch.Generator().manual_seed(0)).tolist()
    alone = HandRunner(model, num_blocks=16).feed({0: ids})[0]

    single = HandRunner(model, num_blocks=16)
    assert torch.equal(torch.cat([single.feed({0: [token]})[0] for token in ids]), alone)

    chunked = HandRunner(model, num_blocks=16)
    parts = [ids[:5], ids[5:21], ids[21:22], ids[22:]]
    assert torch.equal(torch.cat([chunked.feed({0: part})[0] for part in parts]), alone)

    crowded = HandRunner(model, num_blocks=64)
    crowded.feed({1: ids[:30], 2: ids[7:9]})
    step = crowded.feed({1: ids[30:33], 0: ids[:17], 2: ids[9:10]})
    rest = crowded.feed({2: ids[10:14], 0: ids[17:]})
    assert torch.equal(torch.cat([step[0], rest[0]]), alone)
