"""What the conformance suite cannot see: long requests, threads, levels, memory, odd places."""

import itertools

import pytest
import torch
from deepinfer_core.ops.reference import act, gemm, norm, rope
from deepinfer_core.ops.reference.invariant_attn import paged as reference_paged
from deepinfer_core.plugin_api import Problem
from deepinfer_core.testing.cases.attn import make_meta

LEVELS = ("scalar", "avx2", "avx512", "avx512_bf16")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture
def kernels(cpu_library):
    from deepinfer_cpu import kernels

    return kernels


@pytest.fixture
def threads():
    """threads(N): run on so many until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def close(actual, expected, dtype):
    torch.testing.assert_close(
        actual.float(), expected.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


def make_batch(requests, dtype, block_size=16, num_heads=4, num_kv_heads=2, head_dim=32):
    """q, both caches and the meta of requests of (query length, length)."""
    torch.manual_seed(0)
    counts = [-(-length // block_size) for _, length in requests]
    blocks = torch.split((torch.randperm(sum(counts)) + 1).int(), counts)
    tables = torch.zeros(len(requests), max(counts), dtype=torch.int32)
    for row, ids in enumerate(blocks):
        tables[row, : len(ids)] = ids
    pool = torch.randn(sum(counts) + 1, 2, block_size, num_kv_heads, head_dim).to(dtype)
    q = torch.randn(sum(n for n, _ in requests), num_heads, head_dim).to(dtype)
    meta = make_meta(requests, [length for _, length in requests], tables, block_size, "cpu")
    return q, pool[:, 0], pool[:, 1], meta


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 700])
def test_long_requests_cross_spans(kernels, dtype, window):
    q, k, v, meta = make_batch([(1, 1500), (40, 1030), (1, 512), (1, 513)], dtype)
    expected = reference_paged(q, k, v, meta, 0.2, window=window)
    close(kernels.paged(q, k, v, meta, 0.2, window=window), expected, dtype)


@pytest.mark.parametrize("num_threads", [2, 3])
def test_spans_on_several_threads_have_the_same_bits(kernels, threads, num_threads):
    """A long request alone is cut up, in a batch it is not."""
    requests = [(1, 3000), *[(1, 600)] * 15]
    q, k, v, meta = make_batch(requests, torch.bfloat16)
    threads(1)
    whole, lse = kernels.paged(q, k, v, meta, 0.2, return_lse=True)
    threads(num_threads)
    again = kernels.paged(q, k, v, meta, 0.2)
    alone_meta = make_meta([(1, 3000)], [3000], meta.block_tables[:1], 16, "cpu")
    alone, alone_lse = kernels.paged(q[:1], k, v, alone_meta, 0.2, return_lse=True)
    assert torch.equal(again, whole)
    assert torch.equal(alone, whole[:1]) and torch.equal(alone_lse, lse[:1])


@pytest.mark.parametrize("cut", [1, 47, 300])
def test_a_prompt_in_chunks_has_the_bits_of_the_whole(kernels, threads, cut):
    threads(2)
    q, k, v, meta = make_batch([(600, 600)], torch.float32)
    whole = kernels.paged(q, k, v, meta, 0.2)
    first = make_meta([(cut, cut)], [cut], meta.block_tables, 16, "cpu")
    rest = make_meta([(600 - cut, 600)], [600], meta.block_tables, 16, "cpu")
    parts = [kernels.paged(q[:cut], k, v, first, 0.2), kernels.paged(q[cut:], k, v, rest, 0.2)]
    assert torch.equal(torch.cat(parts), whole)


def test_a_nan_in_a_query_reaches_its_own_rows_only(kernels):
    q, k, v, meta = make_batch([(2, 90), (1, 70)], torch.float32)
    clean = kernels.paged(q, k, v, meta, 0.2)
    q[1, 0, 3] = float("nan")
    o = kernels.paged(q, k, v, meta, 0.2)
    assert o[1, 0].isnan().all()
    clean[1, 0] = o[1, 0] = 0
    assert torch.equal(o, clean)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_level_agrees_with_the_reference(kernels, at_level, level, dtype):
    at_level(level)
    x, residual = torch.randn(5, 1000).to(dtype), torch.randn(5, 1000).to(dtype)
    weight = torch.randn(1000).to(dtype)
    for ours, theirs in zip(
        kernels.rms(x, weight, 1e-5, residual), norm.rms(x, weight, 1e-5, residual), strict=True
    ):
        close(ours, theirs, dtype)
    close(kernels.silu_mul(x * 20), act.silu_mul(x * 20), dtype)
    q, positions, table = torch.randn(5, 3, 70).to(dtype), torch.arange(5), torch.randn(9, 66)
    for layout in ("half", "interleaved"):
        ours, theirs = (f(q, None, positions, table, layout) for f in (kernels.rope, rope.apply))
        close(ours[0], theirs[0], dtype)
    batch = make_batch([(1, 77), (9, 200)], dtype)
    close(kernels.paged(*batch, 0.2), reference_paged(*batch, 0.2), dtype)


def test_levels_differ_where_they_should(kernels, at_level):
    """Else the test above would compare one level with itself."""
    batch = make_batch([(64, 300)], torch.float32)
    results = []
    for level in ("scalar", "avx2", "avx512"):
        at_level(level)
        results.append(kernels.paged(*batch, 0.2))
    assert not torch.equal(results[0], results[1])
    assert not torch.equal(results[1], results[2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unaligned_rows(kernels, dtype):
    """Rows that begin at any element, as slices of wider ones do."""
    wide = torch.randn(40, 131).to(dtype)
    for first in (1, 2, 3):
        x = wide[:, first : first + 128]
        close(kernels.rms(x, None, 1e-5)[0], norm.rms(x, None, 1e-5)[0], dtype)
        close(kernels.silu_mul(x), act.silu_mul(x), dtype)


def test_half_precision_conversions_are_exact(kernels, at_level):
    """Every number of float16 goes through float32 and back, where the CPU cannot do it itself."""
    at_level("scalar")
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    every = every[every.isfinite()].view(1, -1)
    zeros = torch.zeros_like(every)
    assert torch.equal(kernels.rms(every, None, 1e-5, zeros)[1], every)


@pytest.fixture
def weights(kernels, cpu_library):
    if cpu_library.best_level() not in ("avx512", "avx512_bf16"):
        pytest.skip("products need a CPU with avx512")
    from deepinfer_cpu import weights

    return weights


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_packed_and_plain_weights_give_the_same_bits(kernels, weights, threads, name):
    dtype = getattr(torch, name)
    threads(2)
    x, bias = torch.randn(37, 518).to(dtype), torch.randn(336).to(dtype)
    weight = torch.randn(336, 600)[:, :518].to(dtype)
    packed = weights.prepare(Problem("gemm.dense", name), weight)
    assert packed.dim() == 3 and packed.data_ptr() % weights.ALIGNMENT == 0
    whole = kernels.dense(x, packed, bias)
    close(whole, gemm.dense(x.float(), weight.float(), bias.float()).to(dtype) + 0, dtype)
    assert torch.equal(kernels.dense(x, weight, bias), whole)
    for rows in (1, 3, 5, 16, 20):
        assert torch.equal(kernels.dense(x[:rows], packed, bias), whole[:rows])


def test_a_weight_that_fills_no_panels_stays_plain(weights):
    weight = torch.randn(33, 64)
    assert weights.prepare(Problem("gemm.dense", "float32"), weight) is weight


def test_an_arena_is_cut_into_aligned_pieces_and_outlived_by_them(weights):
    arenas = weights.Arenas()
    pieces = [arenas.take((3, 5), torch.bfloat16) for _ in range(3)]
    large = arenas.take((weights.ARENA_BYTES + 1,), torch.uint8)
    places = [piece.data_ptr() for piece in pieces]
    assert [b - a for a, b in itertools.pairwise(places)] == [weights.ALIGNMENT] * 2
    for number, piece in enumerate(pieces):
        piece.fill_(number)
    del arenas
    large.fill_(9)
    assert [piece.unique().tolist() for piece in pieces] == [[0.0], [1.0], [2.0]]
