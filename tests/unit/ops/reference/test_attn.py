"""What the conformance cases do not reach: long prompts, plans shared by unlike layers."""

from functools import partial

import pytest
import torch
from deepinfer_core.ops.reference import attn, invariant_attn, invariant_plan, paged_plan
from deepinfer_core.testing.case import Maker
from deepinfer_core.testing.cases.attn import Geometry, PagedBuild, attend_in_full, make_batch
from deepinfer_core.testing.compare import assert_close

KERNELS = {
    "reference": (attn.paged, paged_plan.plan_paged),
    "invariant": (invariant_attn.paged, invariant_plan.plan_paged),
}
SMOL = Geometry(num_q_heads=9, num_kv_heads=3, head_dim=64, block_size=16)


def build(requests, *features, window=None):
    return PagedBuild(SMOL, requests, frozenset(features), window)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("requests", [[(700, 700)], [(520, 900), (1, 900)]])
def test_long_prompts_in_several_tiles(kernel, window, requests):
    case = build(requests, window=window)
    make = Maker(torch.float32)
    batch = make_batch(case, requests, make)
    paged, _ = KERNELS[kernel]
    o, lse = paged(**batch, scale=SMOL.scale, window=window, return_lse=True)
    truth = attend_in_full(batch, case, case.extras(make))
    for output, expected in zip((o, lse), truth, strict=True):
        assert_close(output, expected, "rounding", kernel)
    plain = paged(**batch, scale=SMOL.scale, window=window)
    assert_close(plain, truth[0], "rounding", kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_plan_serves_layers_of_other_strides_heads_and_windows(kernel):
    """A step's plan is made once; what it keeps for one layer must not leak into another."""
    paged, plan_paged = KERNELS[kernel]
    requests = [(1, 50), (1, 70), (20, 33), (3, 64)]
    case = build(requests, "strided_cache")
    make = Maker(torch.float32)
    first = make_batch(case, requests, make)
    meta = first["meta"]
    plan = plan_paged(None, meta)
    shape = first["k_cache"].shape
    other = make.normal(shape[0], 2, shape[1], 1, 32)
    layers = [
        (first["q"], first["k_cache"], first["v_cache"], {}),
        (first["q"], first["k_cache"].contiguous(), first["v_cache"].contiguous(), {}),
        (make.normal(25, 4, 32), other[:, 0], other[:, 1], {"window": 9}),
        (first["q"], first["k_cache"], first["v_cache"], {"window": 9}),
        (first["q"], first["k_cache"], first["v_cache"], {"softcap": 2.0}),
    ]
    for q, k_cache, v_cache, extras in layers * 2:
        call = partial(paged, q, k_cache, v_cache, meta, SMOL.scale, **extras)
        assert torch.equal(call(plan=plan), call(plan=None))


@pytest.mark.parametrize("kernel", KERNELS)
def test_results_outlive_the_next_layer(kernel):
    """Scratch memory is shared by layers, outputs are not."""
    paged, plan_paged = KERNELS[kernel]
    requests = [(1, 50), (12, 33)]
    make = Maker(torch.float32)
    batch = make_batch(build(requests), requests, make)
    plan = plan_paged(None, batch["meta"])
    o = paged(**batch, scale=SMOL.scale, plan=plan)
    kept = o.clone()
    paged(**{**batch, "q": -batch["q"]}, scale=SMOL.scale, plan=plan)
    assert torch.equal(o, kept)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_cache_whose_pages_are_no_multiple_of_a_head(kernel):
    """Pages of several layout groups have one size, which need not divide by a head's."""
    paged, _ = KERNELS[kernel]
    requests = [(1, 50), (20, 33)]
    batch = make_batch(build(requests), requests, Maker(torch.float32))
    odd = {}
    for name in ("k_cache", "v_cache"):
        cache = batch[name]
        size = cache[0].numel()
        pages = torch.zeros(cache.shape[0], size + 7)
        odd[name] = pages[:, :size].view(cache.shape)
        odd[name].copy_(cache)
    o = paged(**{**batch, **odd}, scale=SMOL.scale)
    torch.testing.assert_close(o, paged(**batch, scale=SMOL.scale))


def test_merging_parts_gives_the_whole():
    make = Maker(torch.float32)
    q, k, v = make.normal(5, 2, 8), make.normal(30, 2, 8), make.normal(30, 2, 8)

    def attend(keys, values):
        scores = torch.einsum("thd,shd->ths", q, keys)
        return torch.einsum("ths,shd->thd", scores.softmax(-1), values), scores.logsumexp(-1)

    merged = attn.merge(*attend(k[:11], v[:11]), *attend(k[11:], v[11:]))
    for output, expected in zip(merged, attend(k, v), strict=True):
        torch.testing.assert_close(output, expected)
