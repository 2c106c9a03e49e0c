"""GGUF files against transformers' own GGUF loading: names, row order, decoding, metadata."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny_gguf import GGUF_FAMILIES, write_tiny_gguf
from deepinfer_core.weights.checkpoint import open_checkpoint


@pytest.mark.parametrize(
    ("family", "kind"),
    [*((family, "Q8_0") for family in GGUF_FAMILIES), ("llama", "Q4_1"), ("llama", "Q4_K")],
)
def test_logits_agree(family: str, kind: str, tmp_path: Path) -> None:
    sizes: dict[str, int] = {}
    if kind.endswith("_K"):
        sizes = {"hidden_size": 256, "intermediate_size": 256}  # rows are multiples of 256
    # transformers does not read these two but assumes them.
    sizes |= {"qwen3": {"head_dim": 128}, "qwen3_moe": {"moe_intermediate_size": 768}}.get(
        family, {}
    )
    path = write_tiny_gguf(tmp_path / "tiny.gguf", family, kind=kind, mlp_only_layers=[], **sizes)
    checkpoint = open_checkpoint(path)
    ours = build_model(checkpoint.info, reference_table(), dtype="float32")
    load_weights(ours, checkpoint, device="cpu")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    if family == "qwen3_moe":
        # The file does not say; both of its readers assume otherwise.
        theirs.config.norm_topk_prob = True
        for layer in theirs.model.layers:
            layer.mlp.gate.norm_topk_prob = True
    ids = torch.randint(3, 275, (40,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(ids[None], use_cache=False).logits[0]
    logits = HandRunner(ours).feed({0: ids.tolist()})[0]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
