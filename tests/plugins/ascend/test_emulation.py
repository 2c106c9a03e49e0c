"""The plugin's own kernels on an emulated NPU: claims hold, and models answer as they should."""

from dataclasses import replace

import pytest
from deepinfer_ascend.claims import all_kernels
from deepinfer_ascend.emulation import plugin as emulation
from deepinfer_ascend.soc import soc_of
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.run import run_conformance
from deepinfer_core.testing.subject import find_subject
from deepinfer_core.testing.tiny import write_tiny_checkpoint

PLUGIN = "deepinfer_ascend.emulation.plugin"
PROMPTS = [[7, 3, 9, 11, 5], [8, 2], list(range(20, 60)), list(range(100, 250))]
MAX_TOKENS = 12
DENSE = {"norm.rms", "act.silu_mul", "gemm.dense", "rope.apply", "kv.store", "attn.paged"}
MOE = {"moe.route", "moe.experts"}
LATENT = {"norm.rms", "gemm.dense", "rope.apply", "kv.store", "gemm.batched"}
SERVED = {
    "llama": DENSE,
    "mistral": DENSE,
    "qwen3": DENSE,
    "qwen3_moe": DENSE | MOE,
    "deepseek_v3": LATENT | MOE | {"attn.mla"},
    "deepseek_v32": LATENT | MOE | {"attn.sparse_mla"},
    "deepseek_v4": LATENT | {"moe.experts", "attn.sparse_mla"},
    "deepseek_v41": LATENT | {"moe.experts", "attn.sparse_mla"},
}
"""Family -> ops that the plugin must serve in its models on any chip."""
LATENT_SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
INDEX_SIZES = {"index_head_dim": 128, "index_n_heads": 16}
RELEASED_SIZES = {
    "deepseek_v3": (LATENT_SIZES, {"attn.mla": "ascend.sparse"}),
    "deepseek_v32": (
        LATENT_SIZES | INDEX_SIZES,
        {"attn.sparse_mla": "ascend.sparse", "index.select": "ascend.fused"},
    ),
    "deepseek_v4": (
        INDEX_SIZES | {"hidden_size": 128},
        {"hc.pre": "ascend.fused", "hc.post": "ascend.fused", "index.select": "ascend.fused"},
    ),
    "deepseek_v41": ({"hidden_size": 128}, {"hc.pre": "ascend.fused", "hc.post": "ascend.fused"}),
}
"""Family -> sizes that operators are made for, and who then serves what."""


def generate(directory, host, **fields):
    """Greedy tokens, and who served each op."""
    fields = {"num_blocks": 64, "max_num_seqs": 4, "num_threads": 1} | fields
    engine = Engine.from_config(EngineConfig.from_flat(str(directory), **fields), host)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    requests = [request for prompt in PROMPTS for request in engine.add(prompt, params)]
    while engine.has_unfinished:
        engine.advance()
    providers = {}
    for choice in engine.op_choices:
        providers.setdefault(choice.op, set()).add(choice.provider)
    return [request.output_token_ids for request in requests], providers


def host_of(device):
    host = PluginHost(load_entry_points=False)
    host.register(device, name="npu")
    return host


def test_claims_hold_on_a_910b():
    report = run_conformance(f"{PLUGIN}:on_910b", levels=("L0", "L1", "L2"))
    assert [(r.op, r.dtype, r.name, r.message) for r in report.failures] == []
    assert {r.outcome for r in report.results} == {"passed"}


@pytest.mark.parametrize("soc", ["910c", "950"])
def test_claims_hold_on_newer_chips_where_they_differ(soc):
    subject = find_subject(f"{PLUGIN}:on_{soc}")
    kernels = [kernel for kernel in subject.kernels if kernel not in all_kernels(soc_of("910b"))]
    report = run_conformance(replace(subject, kernels=kernels), levels=("L0", "L1", "L2"))
    assert [(r.op, r.dtype, r.name, r.message) for r in report.failures] == []
    unserved = {(r.op, r.message) for r in report.results if r.outcome != "passed"}
    rounds = "rounds rows to e4m3, which the problem does not permit"
    assert unserved <= {("gemm.coded", rounds), ("moe.coded", rounds)}


@pytest.mark.parametrize("family", SERVED)
@pytest.mark.parametrize("block_size", [16, 128])
def test_a_model_says_the_same(family, block_size, tmp_path):
    write_tiny_checkpoint(tmp_path, family)
    fields = {"dtype": "float32", "block_size": block_size, "max_num_batched_tokens": 100}
    expected, _ = generate(tmp_path, PluginHost(load_entry_points=False), kind="cpu", **fields)
    tokens, providers = generate(tmp_path, host_of(emulation.wide_910b), kind="npu", **fields)
    assert tokens == expected and all(tokens)
    ours = {op for op, names in providers.items() if names <= {"ascend.fused", "ascend.sparse"}}
    assert SERVED[family] <= ours


@pytest.mark.parametrize("family", RELEASED_SIZES)
def test_a_model_of_released_sizes_says_the_same(family, tmp_path):
    sizes, served = RELEASED_SIZES[family]
    write_tiny_checkpoint(tmp_path, family, **sizes)
    fields = {"dtype": "float32", "block_size": 128, "max_num_batched_tokens": 100}
    expected, _ = generate(tmp_path, PluginHost(load_entry_points=False), kind="cpu", **fields)
    tokens, providers = generate(tmp_path, host_of(emulation.wide_950), kind="npu", **fields)
    assert tokens == expected and all(tokens)
    assert {op: providers[op] for op in served} == {op: {name} for op, name in served.items()}
