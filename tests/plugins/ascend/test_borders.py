"""What happens at the border to the operators: pages, masks in pieces, heads in parts."""

import re
from dataclasses import replace

import pytest
import torch
from deepinfer_ascend.emulation import registry
from deepinfer_ascend.kernels import formats, fused, groups, latent, paged, pages, sparse
from deepinfer_core.testing.run import run_conformance
from deepinfer_core.testing.subject import find_subject


def check(op, dtype="float16"):
    """Numbers of an op on an emulated 910B, in one dtype."""
    subject = find_subject("deepinfer_ascend.emulation.plugin:on_910b")
    kernels = [
        replace(kernel, caps=replace(kernel.caps, dtypes=(dtype,)))
        for kernel in subject.kernels
        if kernel.op == f"{op}@1"
    ]
    report = run_conformance(replace(subject, kernels=kernels), levels=("L1",))
    assert [(r.name, r.message) for r in report.failures] == []
    assert {r.outcome for r in report.results} == {"passed"}


@pytest.mark.parametrize("op", ["attn.paged", "attn.mla", "attn.mla_prefill"])
def test_long_chunks_are_attended_to_in_pieces(op, monkeypatch):
    monkeypatch.setattr(groups, "MAX_MASK_BYTES", 700)
    monkeypatch.setattr(latent, "MAX_EXPANDED", 9_000)
    check(op)


def test_few_tokens_are_gathered_at_a_time(monkeypatch):
    monkeypatch.setattr(sparse, "MAX_GATHERED", 10_000)
    check("attn.sparse_mla")


@pytest.mark.parametrize("op", ["attn.mla", "attn.sparse_mla"])
def test_many_queries_of_a_key_are_attended_to_in_parts(op, monkeypatch):
    monkeypatch.setattr(fused, "MAX_QUERIES_PER_KEY", 5)
    check(op)


def test_a_view_into_pages_of_all_layers_is_a_cache_of_every_nth_block():
    pool = torch.arange(4 * 3 * 2 * 5).view(4, 3, 2, 5)  # blocks of two tokens, three planes a page
    view = pool[:, 1]
    found = pages.as_pages(view)
    assert found.step == 3 and found.cache.is_contiguous()
    for block in range(4):
        assert torch.equal(found.cache[block * found.step], view[block])
    slots = torch.tensor([0, 1, 5, 7, -1])
    rows = found.cache.flatten(0, 1)[pages.scaled_slots(slots[:4], 2, found.step)]
    assert torch.equal(rows, view.flatten(0, 1)[slots[:4]])
    assert (pages.scaled_slots(slots, 2, found.step)[4:] < 0).all()


def test_a_page_that_is_no_whole_number_of_blocks_is_none():
    assert pages.as_pages(torch.zeros(4, 21)[:, :10].view(4, 2, 5)) is None


@pytest.mark.parametrize(
    ("block_size", "num_queries", "is_in_place"),
    [(128, 1, True), (128, 9, True), (16, 1, True), (16, 9, False), (5, 1, False)],
)
def test_blocks_are_read_where_they_lie_if_the_operator_can(block_size, num_queries, is_in_place):
    cache = torch.zeros(6, 2, block_size, 1, 16)[:, 0]
    tables = torch.tensor([[3, 1]], dtype=torch.int32)
    positions = torch.arange(num_queries).view(1, -1)
    group = groups.Group(None, positions, [num_queries], tables, block_size)
    k, _, where = paged._keys_and_values(cache, cache, group)
    if is_in_place:
        assert where["block_table"].tolist() == [[6, 2]]
        assert k.data_ptr() == cache.data_ptr()
    else:
        assert where == {} and k.shape == (1, 2 * block_size, 1, 16)


def test_only_whole_tiles_of_16_bits_are_stored_in_the_cube_format():
    assert formats.fits_nz(torch.zeros(32, 48, dtype=torch.bfloat16))
    assert not formats.fits_nz(torch.zeros(32, 40, dtype=torch.bfloat16))
    assert not formats.fits_nz(torch.zeros(32, 48))


def test_every_schema_has_an_emulation_that_takes_what_it_says():
    assert set(registry.read_schemas()) == set(registry.EMULATIONS)
    for name, schema in registry.read_schemas().items():
        declared = set(re.findall(r"(\w+)(?:=[^,()]*)?[,)]", schema.partition(" -> ")[0]))
        code = registry.EMULATIONS[name].__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        assert set(names) <= declared, name


def test_an_operator_refuses_what_its_documents_refuse():
    find_subject("deepinfer_ascend.emulation.plugin:on_910b")
    with pytest.raises(ValueError, match="contiguous rows"):
        torch.ops.npu.npu_rms_norm(torch.zeros(4, 8).T, torch.ones(4), 1e-6)
    with pytest.raises(ValueError, match="a 950"):
        torch.ops.npu.npu_dynamic_mx_quant(torch.zeros(2, 64).half(), dst_type=torch.float8_e4m3fn)
    with pytest.raises(RuntimeError, match="npu_rms_norm"):
        torch.ops.npu.npu_rms_norm(torch.zeros(4, 8), eps=1e-6)
