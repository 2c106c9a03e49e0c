from __future__ import annotations

import torch
from deepinfer_core.weights.dummy import fill_dummy


def test_sizes_keep_activations_in_range() -> None:
    views = {
        "layers.0.q_proj.weight": torch.empty(512, 256),
        "layers.0.q_proj.bias": torch.empty(4096),
        "layers.0.input_layernorm.weight": torch.empty(64),
        "layers.0.self_attn.q_norm.weight": torch.empty(64),
    }
    fill_dummy(views)
    matrix, bias, *norms = views.values()
    torch.testing.assert_close(matrix.std() * 16, torch.tensor(1.0), atol=0.02, rtol=0)
    torch.testing.assert_close(bias.std(), torch.tensor(0.02), atol=2e-3, rtol=0)
    assert all(torch.equal(norm, torch.ones(64)) for norm in norms)


def test_numbers_depend_on_the_name_alone() -> None:
    first = {"a.weight": torch.empty(8, 8), "b.weight": torch.empty(8, 8)}
    second = {"b.weight": torch.empty(8, 8)}
    fill_dummy(first)
    fill_dummy(second)
    assert torch.equal(first["b.weight"], second["b.weight"])
    assert not torch.equal(first["a.weight"], first["b.weight"])
