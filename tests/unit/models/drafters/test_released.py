"""Drafters of checkpoints that are stored as released ones are: FP8, MXFP4 and bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deepinfer_core.models.coded import keep_stored_codes
from deepinfer_core.models.drafters.build import build_drafter
from deepinfer_core.models.loader import load_weights
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.drafting import DraftRunner, load_with_drafter
from deepinfer_core.testing.tiny import TINY_DRAFTERS, write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint

IDS = list(range(30, 60))


@pytest.mark.parametrize("name", TINY_DRAFTERS)
def test_codes_may_be_kept_or_not(name: str, tmp_path: Path) -> None:
    family, fields = TINY_DRAFTERS[name]
    write_tiny_checkpoint(tmp_path, family, quantize=True, **fields)
    ops = reference_table()
    target, drafter = load_with_drafter(tmp_path, ops)
    coded = build_drafter(target.config, ops, dtype="float32", first_cache=len(target.layer_kv()))
    checkpoint = open_checkpoint(tmp_path)
    assert keep_stored_codes(coded, checkpoint, ops, "keep")
    load_weights(coded, checkpoint, device="cpu")
    sizes = [sum(p.nbytes for p in module.parameters()) for module in (coded, drafter)]
    assert sizes[0] < sizes[1]
    found, expected = (
        DraftRunner(target, module, num_lookahead_tokens=2).propose({0: IDS}, {0: 5}, 3)[1][0]
        for module in (coded, drafter)
    )
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=0)
