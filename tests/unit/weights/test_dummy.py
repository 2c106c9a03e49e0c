from __future__ import annotations

import torch
from deepinfer_core.ops.reference.codes import decode_mxfp4
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


def test_codes_and_scales_mean_numbers_of_the_usual_size() -> None:
    for powers in (torch.float32, torch.float8_e8m0fnu):
        views = {
            "a.weight": torch.empty(256, 512, dtype=torch.float8_e4m3fn),
            "a.weight_scale_inv": torch.empty(2, 4, dtype=powers),
        }
        fill_dummy(views)
        codes, scales = (view.float() for view in views.values())
        assert codes.isfinite().all()
        assert len(scales.unique()) == 1
        size = codes.std() * scales[0, 0] * 512**0.5
        assert 0.7 < size < 1.42  # scales are powers of two
    packed = {
        "a.weight": torch.empty(256, 256, dtype=torch.int8),
        "a.scale": torch.empty(256, 16, dtype=torch.float8_e8m0fnu),
    }
    fill_dummy(packed)
    numbers = decode_mxfp4(packed["a.weight"].view(torch.uint8), packed["a.scale"].float())
    assert 0.7 < numbers.std() * 512**0.5 < 1.42


def test_tokens_get_different_experts() -> None:
    views = {
        "ffn.gate.weight": torch.empty(8, 4),
        "ffn.gate.tid2eid": torch.empty(100, 3, dtype=torch.int64),
    }
    fill_dummy(views)
    ids = views["ffn.gate.tid2eid"]
    assert all(len(set(row)) == 3 for row in ids.tolist())
    assert set(ids.flatten().tolist()) == set(range(8))
