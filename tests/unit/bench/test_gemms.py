"""The products of a model, alone: all of them, once each, with the right inputs."""

import pytest
import torch
from deepinfer_core.bench.gemms import gemm_ceiling
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine_setup import load_model
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.tiny import write_tiny_checkpoint


@pytest.fixture
def load(tmp_path):
    def load(family):
        path = write_tiny_checkpoint(tmp_path / family, family)
        config = EngineConfig.from_flat(str(path), dtype="float32")
        return load_model(config, PluginHost(load_entry_points=False)).model

    return load


def record(model):
    """(name of the module, shape of its input) of every call from now on."""
    calls = []

    def note(module, inputs):
        calls.append((names[module], tuple(inputs[0].shape)))

    names = {module: name for name, module in model.named_modules()}
    for module in names:
        module.register_forward_pre_hook(note)
    compute_logits = model.compute_logits

    def head(hidden_states):
        calls.append(("head", tuple(hidden_states.shape)))
        return compute_logits(hidden_states)

    model.compute_logits = head
    return calls


def test_each_product_runs_once_per_pass_in_the_order_of_a_step(load):
    model = load("llama")
    calls = record(model)
    speeds = gemm_ceiling(model, [5], repeats=2)
    layer = [("self_attn.qkv_proj", 64), ("self_attn.o_proj", 64), ("mlp.gate_up_proj", 64),
             ("mlp.down_proj", 96)]  # fmt: skip
    a_pass = [(f"model.layers.{i}.{name}", (5, k)) for i in range(3) for name, k in layer]
    assert calls == 3 * [*a_pass, ("head", (5, 64))]  # one pass to warm up
    assert set(speeds) == {5}
    assert 0 < speeds[5].best_ms <= speeds[5].median_ms


def test_experts_run_with_distinct_experts_for_each_token(load):
    model = load("qwen3_moe")
    seen = []
    experts = model.model.layers[0].mlp.experts
    experts.register_forward_pre_hook(lambda module, inputs: seen.append(inputs))
    gemm_ceiling(model, [3], repeats=1)
    for x, ids, weights in seen:
        assert x.shape == (3, 64)
        assert ids.dtype == torch.int32
        assert all(len(set(row)) == 2 for row in ids.tolist())
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(3))
    assert len(seen) == 2
