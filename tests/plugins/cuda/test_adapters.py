"""Adapters give other libraries what these say they want, and our ops what they promise.

The libraries are stood in for by fakes, which check shapes and compute in plain torch from exactly
what they were given: no adapter was ever run with the real ones.
"""

import sys
from itertools import pairwise
from types import ModuleType
from typing import ClassVar

import pytest
import torch
from deepinfer_core.errors import PlatformError
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.reference import attn, gemm
from deepinfer_core.ops.reference.quant import act
from deepinfer_core.ops.registry import SelectionRules, refusal
from deepinfer_core.ops.spec import OP_SPECS
from deepinfer_core.plugin_api import DeviceInfo, Problem
from deepinfer_cuda.claims import adapters

pytest.importorskip("triton")
from deepinfer_cuda.kernels.adapters import deep_gemm, flash_mla, flashinfer

HOPPER = SelectionRules(DeviceInfo("cuda", arch="9.0"))
HEADS, KV_HEADS, DIM = 8, 2, 64


def batch(query_lens, seq_lens, block_size):
    """A batch whose pages lie in random order; bounds are no lengths."""
    counts = [-(-length // block_size) for length in seq_lens]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)) + 1
    tables = torch.zeros(len(counts), max(counts) + 1, dtype=torch.int32)
    for row, pages in enumerate(order.split(counts)):
        tables[row, : len(pages)] = pages
    pairs = zip(query_lens, seq_lens, strict=True)
    meta = AttentionMeta(
        cu_seqlens_q=torch.tensor([0, *query_lens]).cumsum(0).int(),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.full((sum(query_lens),), -1, dtype=torch.int32),
        positions=torch.cat([torch.arange(end - count, end) for count, end in pairs]),
        block_size=block_size,
        query_lens=query_lens,
        seq_len_bounds=[length + 3 for length in seq_lens],
    )
    return meta, sum(counts) + 1


def dense_attention(q, keys, values, scale, window_left=-1):
    """q [n, H, D] at the end of keys [L, Hk, D] -> o, lse (natural)."""
    group = q.shape[1] // keys.shape[1]
    k, v = (each.repeat_interleave(group, dim=1) for each in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    places = torch.arange(len(keys) - len(q), len(keys))[:, None] - torch.arange(len(keys))
    hidden = places < 0
    if window_left >= 0:
        hidden |= places > window_left
    scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v), scores.logsumexp(-1).T


class Wrapper:
    """Both wrappers of FlashInfer 0.7: the same pages, planned with or without query lengths."""

    made: ClassVar[list] = []

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_tensor_cores=None):
        assert float_workspace_buffer.dtype == torch.uint8
        assert kv_layout == "NHD"
        self.made.append(self)

    def _plan(self, indptr, indices, last, heads, kv_heads, head_dim, page_size, **options):
        assert indptr.dtype == indices.dtype == last.dtype == torch.int32
        assert indptr.device.type == last.device.type == "cpu"
        assert len(indices) == indptr[-1]
        assert ((last >= 1) & (last <= page_size)).all()
        assert (heads, kv_heads, head_dim) == (HEADS, KV_HEADS, DIM)
        assert options["q_data_type"] == options["kv_data_type"] == torch.float32
        assert options["sm_scale"] == 1.0
        self.pages = [indices[a:b] for a, b in pairwise(indptr)]
        self.lens = (indptr.diff() - 1) * page_size + last

    def run(self, q, paged_kv_cache, *, q_scale, window_left, return_lse):
        parts = []
        for i, (pages, length) in enumerate(zip(self.pages, self.lens, strict=True)):
            k, v = (plane[pages.long()].flatten(0, 1)[:length] for plane in paged_kv_cache)
            queries = q[self.qo_indptr[i] : self.qo_indptr[i + 1]]
            parts.append(dense_attention(queries, k, v, q_scale, window_left))
        o, lse = (torch.cat(each) for each in zip(*parts, strict=True))
        return (o, lse / torch.log(torch.tensor(2.0))) if return_lse else o


class DecodeWrapper(Wrapper):
    def plan(self, indptr, *pages, **options):
        self.qo_indptr = torch.arange(len(indptr))
        self._plan(indptr, *pages, **options)


class PrefillWrapper(Wrapper):
    def plan(self, qo_indptr, *pages, causal, **options):
        assert causal
        assert qo_indptr.device.type == "cpu"
        self.qo_indptr = qo_indptr
        self._plan(*pages, **options)


@pytest.fixture
def fake(monkeypatch):
    """fake(name, **contents): a library that is installed now."""

    def fake(name, **contents):
        module = ModuleType(name)
        module.__dict__.update(contents)
        module.__spec__ = object()
        monkeypatch.setitem(sys.modules, name, module)

    flashinfer._wrapper.cache_clear()
    Wrapper.made = []
    return fake


@pytest.mark.parametrize(
    ("query_lens", "seq_lens"),
    [([1, 1, 1], [5, 32, 17]), ([4, 1, 7], [4, 20, 33])],
    ids=["single queries", "chunks"],
)
@pytest.mark.parametrize("window", [None, 6])
def test_flashinfer_attends_to_our_pages(fake, query_lens, seq_lens, window):
    fake(
        "flashinfer",
        BatchDecodeWithPagedKVCacheWrapper=DecodeWrapper,
        BatchPrefillWithPagedKVCacheWrapper=PrefillWrapper,
    )
    meta, num_pages = batch(query_lens, seq_lens, 16)
    pool = torch.randn(num_pages, 3, 2, 16, KV_HEADS, DIM)
    k, v = pool[:, 1, 0], pool[:, 1, 1]
    q = torch.randn(sum(query_lens), HEADS, DIM)
    sizes = (("head_dim", DIM), ("num_kv_heads", KV_HEADS), ("num_q_heads", HEADS))
    plan = flashinfer.plan(Problem("attn.paged", "float32", sizes), meta)
    call = (q, k, v, meta, 0.3, window)
    found = flashinfer.paged(*call, plan=plan, return_lse=True)
    for ours, right in zip(found, attn.paged(*call, return_lse=True), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(flashinfer.paged(*call), found[0])
    kind = DecodeWrapper if max(query_lens) == 1 else PrefillWrapper
    assert [type(wrapper) for wrapper in Wrapper.made] == [kind]


def fake_flash_mla():
    def get_mla_metadata(cache_seqlens, num_heads_per_head_k, num_heads_k):
        assert (num_heads_per_head_k, num_heads_k) == (HEADS, 1)
        return ("metadata", len(cache_seqlens)), None

    def flash_mla_with_kvcache(
        q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata,
        num_splits=None, softmax_scale=None, causal=False,
    ):  # fmt: skip
        num_requests = len(cache_seqlens)
        assert q.shape == (num_requests, 1, HEADS, 576)
        assert k_cache.shape[1:] == (64, 1, 576)
        assert tile_scheduler_metadata == ("metadata", num_requests)
        assert num_splits is None
        assert causal
        parts = []
        for queries, table, length in zip(q, block_table, cache_seqlens, strict=True):
            rows = k_cache[table.long()].flatten(0, 1)[:length]
            parts.append(dense_attention(queries, rows, rows[..., :head_dim_v], softmax_scale))
        o, lse = (torch.stack(each) for each in zip(*parts, strict=True))
        return o, lse.transpose(1, 2)

    return {"get_mla_metadata": get_mla_metadata, "flash_mla_with_kvcache": flash_mla_with_kvcache}


SIZES = (("kv_rank", 512), ("num_q_heads", HEADS), ("rope_head_dim", 64))


def test_flash_mla_attends_to_latents(fake):
    fake("flash_mla", **fake_flash_mla())
    meta, num_pages = batch([1, 1], [70, 12], 64)
    cache = torch.randn(num_pages, 2, 64, 576)[:, 1]
    call = (torch.randn(2, HEADS, 512), torch.randn(2, HEADS, 64), cache, meta, 0.05)
    plan = flash_mla.plan(Problem("attn.mla", "float32", SIZES), meta)
    found = flash_mla.mla(*call, plan=plan, return_lse=True)
    for ours, right in zip(found, attn.mla(*call, return_lse=True), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(flash_mla.mla(*call), found[0])


def test_flash_mla_says_which_pages_it_wants(fake):
    fake("flash_mla", **fake_flash_mla())
    meta, num_pages = batch([1], [20], 16)
    call = (torch.randn(1, HEADS, 512), torch.randn(1, HEADS, 64), torch.randn(num_pages, 16, 576))
    with pytest.raises(PlatformError, match=r"cache.block_size=64"):
        flash_mla.mla(*call, meta, 0.05)


def test_chunks_of_latents_go_through_our_own_kernel(fake, monkeypatch):
    seen = []
    monkeypatch.setattr(flash_mla.latent, "mla", lambda *call: seen.append(call) or "own")
    monkeypatch.setattr(flash_mla.latent, "plan", lambda problem, meta: "own plan")
    meta, _ = batch([3], [20], 64)
    problem = Problem("attn.mla", "bfloat16", SIZES)
    assert flash_mla.plan(problem, meta) == "own plan"
    assert flash_mla.mla(1, 2, 3, meta, 0.5, "own plan") == "own"
    assert seen == [(1, 2, 3, meta, 0.5, "own plan", False)]


def fp8_gemm_nt(a, b, d):
    (q, scales), (weight, weight_scales) = a, b
    assert q.dtype == weight.dtype == torch.float8_e4m3fn
    assert scales.dtype == weight_scales.dtype == torch.float32
    assert scales.shape == (len(q), -(-q.shape[1] // 128))
    assert weight_scales.shape == (-(-len(weight) // 128), -(-weight.shape[1] // 128))
    assert (d.shape, d.dtype) == ((len(q), len(weight)), torch.bfloat16)
    rows = q.float() * scales.repeat_interleave(128, 1)[:, : q.shape[1]]
    blocks = weight_scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    d.copy_(rows @ (weight.float() * blocks[: len(weight), : weight.shape[1]]).T)


@pytest.fixture
def weight():
    codes = (torch.randn(192, 256) * 32).to(torch.float8_e4m3fn)
    return codes, torch.rand(2, 2) * 1e-3 + 1e-4


def test_deep_gemm_multiplies_rounded_rows(fake, weight):
    fake("deep_gemm", fp8_gemm_nt=fp8_gemm_nt)
    q, scales = act(torch.randn(5, 256), "fp8_block128")
    call = (q, scales, *weight, "fp8_block128", torch.float32)
    found = deep_gemm.scaled(*call)
    torch.testing.assert_close(found, gemm.scaled(*call), rtol=2e-2, atol=2e-2)
    assert found.dtype == torch.float32
    assert deep_gemm.scaled(q[:0], scales[:0], *call[2:]).shape == (0, 192)
    with pytest.raises(ValueError, match="int8_token"):
        deep_gemm.scaled(q, scales, *weight, "int8_token", torch.float32)


def test_deep_gemm_rounds_where_it_may(fake, weight, monkeypatch):
    fake("deep_gemm", fp8_gemm_nt=fp8_gemm_nt)
    monkeypatch.setattr(deep_gemm, "act", act)  # ours runs on a GPU
    x, bias = torch.randn(5, 256, dtype=torch.bfloat16), torch.randn(192, dtype=torch.bfloat16)
    found = deep_gemm.coded(x, *weight, "fp8_block128", bias)
    right = gemm.coded(x, *weight, "fp8_block128", bias)
    error = (found.double() - right.double()).norm() / right.double().norm()
    assert found.dtype == torch.bfloat16
    assert error < 0.05


PROBLEMS = {
    "attn.paged": Problem("attn.paged", "bfloat16", (("head_dim", 128),)),
    "attn.mla": Problem("attn.mla", "bfloat16", SIZES),
    "gemm.scaled": Problem("gemm.scaled", "bfloat16", scheme="fp8_block128"),
    "gemm.coded": Problem(
        "gemm.coded",
        "bfloat16",
        (("in_features", 256), ("out_features", 192)),
        features=frozenset({"rounded_rows"}),
        scheme="fp8_block128",
    ),
}


@pytest.mark.parametrize("kernel", adapters.KERNELS, ids=lambda kernel: kernel.op)
def test_a_claim_serves_where_its_library_is_and_says_how_to_get_it(kernel, fake):
    name = kernel.op.partition("@")[0]
    spec, problem = OP_SPECS[name], PROBLEMS[name]
    reason = refusal(kernel, spec, problem, HOPPER)
    assert "is not installed; " in reason
    fake(kernel.provider.removeprefix("cuda."))
    assert refusal(kernel, spec, problem, HOPPER) is None


def test_deep_gemm_refuses_what_it_cannot_copy_or_may_not_round(fake):
    fake("deep_gemm")
    kernel = adapters.KERNELS[-1]
    plain = Problem("gemm.coded", "bfloat16", PROBLEMS["gemm.coded"].shape, scheme="fp8_block128")
    odd = Problem("gemm.coded", "bfloat16", (("in_features", 200), ("out_features", 192)),
                  features=frozenset({"rounded_rows"}), scheme="fp8_block128")  # fmt: skip
    spec = OP_SPECS["gemm.coded"]
    assert "does not permit" in refusal(kernel, spec, plain, HOPPER)
    assert "200" in refusal(kernel, spec, odd, HOPPER)
