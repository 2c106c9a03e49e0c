"""Two processes that each hold half of a model compute what one does that holds all of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from deepinfer_core.testing.tiny import TINY_DRAFTERS, TINY_FAMILIES, write_tiny_checkpoint

DRAFTS = {"drafts": True}
KEEP = {"quantization": "keep"}
CASES = {
    **{family: (family, {}, {}) for family in TINY_FAMILIES},
    # Fewer key heads than ranks, and biases of what is summed.
    "llama_one_key_head": (
        "llama",
        {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
        {},
    ),
    "deepseek_v3_without_query_latent": ("deepseek_v3", {"q_lora_rank": None}, {}),
    "deepseek_v3_invariant": ("deepseek_v3", {}, {"batch_invariant": True}),
    "deepseek_v3_fp8": ("deepseek_v3", {"quantize": True}, {}),
    "deepseek_v4_coded": ("deepseek_v4", {"quantize": True, "moe_intermediate_size": 64}, KEEP),
    "deepseek_v41_coded": (
        "deepseek_v41",
        {
            "quantize": True,
            "moe_intermediate_size": 64,
            "o_lora_rank": 32,
            "engram_head_dim": 64,
        },
        KEEP,
    ),
    **{name: (*TINY_DRAFTERS[name], DRAFTS) for name in ("mtp_v3", "dspark_v4")},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Case -> what each of the two ranks saw."""
    directory = tmp_path_factory.mktemp("ranks")
    for name, (family, overrides, _) in CASES.items():
        write_tiny_checkpoint(directory / name, family, **overrides)
    options = {name: options for name, (_, _, options) in CASES.items()}
    (directory / "cases.json").write_text(json.dumps(options))
    script = Path(__file__).with_name("run_rank.py")
    command = [sys.executable, str(script), str(directory)]
    ranks = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=600)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()  # one that waits for another that failed
    return {
        name: [torch.load(directory / f"{name}.{rank}.pt") for rank in range(2)] for name in CASES
    }


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_compute_what_one_does(results, case):
    alone = results[case][0]["alone"]
    for rank in results[case]:
        shared = rank["shared"]
        for name in {"hidden_states", "logits", "stretch", "drafts"} & alone.keys():
            scale = alone[name].abs().max().item()
            torch.testing.assert_close(shared[name], alone[name], rtol=0, atol=2e-5 * scale)
        assert shared.get("greedy") == alone.get("greedy")


@pytest.mark.parametrize("case", CASES)
def test_ranks_agree_to_the_bit(results, case):
    """Else they would draw different tokens."""
    first, second = (rank["shared"] for rank in results[case])
    assert torch.equal(first["logits"], second["logits"])


@pytest.mark.parametrize("case", [name for name, (*_, options) in CASES.items() if options == KEEP])
def test_shares_stay_codes(results, case):
    kept = results[case][1]["shared"]["kept"]
    assert any(path.endswith("experts") for path in kept)
    assert any(path.endswith("wo_b") for path in kept) == (case == "deepseek_v41_coded")
