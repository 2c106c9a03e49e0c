"""The plugin's own kernels on an emulated NPU: claims hold, and models answer as they should."""

import pytest
from deepinfer_ascend.emulation import plugin as emulation
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.run import run_conformance
from deepinfer_core.testing.tiny import write_tiny_checkpoint

PLUGIN = "deepinfer_ascend.emulation.plugin"
PROMPTS = [[7, 3, 9, 11, 5], [8, 2], list(range(20, 60)), list(range(100, 250))]
MAX_TOKENS = 12
DENSE = {"norm.rms", "act.silu_mul", "gemm.dense", "rope.apply", "kv.store", "attn.paged"}
SERVED = {
    "llama": DENSE,
    "mistral": DENSE,
    "qwen3": DENSE,
    "qwen3_moe": DENSE | {"moe.route", "moe.experts"},
}
"""Family -> ops that the plugin must serve in its models."""


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


@pytest.mark.parametrize("soc", ["910b", "950"])
def test_claims_hold(soc):
    report = run_conformance(f"{PLUGIN}:on_{soc}", levels=("L0", "L1", "L2"))
    assert [(r.op, r.dtype, r.name, r.message) for r in report.failures] == []
    assert {r.outcome for r in report.results} == {"passed"}


@pytest.mark.parametrize("family", SERVED)
@pytest.mark.parametrize("block_size", [16, 128])
def test_a_model_says_the_same(family, block_size, tmp_path):
    write_tiny_checkpoint(tmp_path, family)
    fields = {"dtype": "float32", "block_size": block_size, "max_num_batched_tokens": 100}
    expected, _ = generate(tmp_path, PluginHost(load_entry_points=False), kind="cpu", **fields)
    tokens, providers = generate(tmp_path, host_of(emulation.wide_910b), kind="npu", **fields)
    assert tokens == expected and all(tokens)
    assert SERVED[family] <= {op for op, names in providers.items() if names == {"ascend.fused"}}
