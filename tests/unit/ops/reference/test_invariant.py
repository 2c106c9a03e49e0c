"""Rows keep their bits in any batch, at sizes of a real small model and with several threads.

The conformance suite tries the same law on small odd sizes.
"""

import random

import pytest
import torch
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.reference import (
    attn,
    gemm,
    invariant_act,
    invariant_attn,
    invariant_gemm,
    invariant_moe,
    moe,
    sparse_attn,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=[1, 4], autouse=True)
def threads(request):
    """One, and more than a lone narrow product has whole vectors for."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def check_rows(function, *rows):
    """Compare random picks of rows, alone and in orders of their own, with the whole batch."""
    draw = random.Random(0)
    size = rows[0].shape[0]
    whole = function(*rows)
    for count in (1, 1, 2, 15, 16, 17, 40, size):
        pick = torch.tensor(draw.sample(range(size), count))
        assert torch.equal(function(*(r[pick] for r in rows)), whole[pick]), f"{count} rows"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(960, 576), (576, 1536), (33, 57)])
def test_gemm(dtype, sizes):
    weight, bias = torch.randn(sizes).to(dtype), torch.randn(sizes[0]).to(dtype)
    x = torch.randn(70, sizes[1]).to(dtype)
    check_rows(lambda rows: invariant_gemm.dense(rows, weight, bias), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul(dtype):
    check_rows(invariant_act.silu_mul, torch.randn(70, 2 * 1536).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts(dtype):
    w13, w2 = torch.randn(8, 192, 128).to(dtype) / 11, torch.randn(8, 128, 96).to(dtype) / 10
    ids, weights = moe.route(torch.randn(70, 8), 2)
    x = torch.randn(70, 128).to(dtype)
    check_rows(lambda *rows: invariant_moe.experts(*rows, w13, w2), x, ids, weights)


class Sequence:
    """One sequence in a cache of its own: queries, and a table of shuffled blocks."""

    block_size, num_heads, num_kv_heads, head_dim = 16, 9, 3, 64

    def __init__(self, length, dtype):
        num_blocks = length // self.block_size + 1
        shape = (num_blocks, 2, self.block_size, self.num_kv_heads, self.head_dim)
        self.cache = torch.randn(shape).to(dtype)
        self.table = torch.randperm(num_blocks).int()
        self.q = torch.randn(length, self.num_heads, self.head_dim).to(dtype)


def attend(paged, chunks, **extras):
    """Attend for (sequence, first, count) chunks of several sequences in one batch."""
    starts, blocks = [], 0
    for sequence, _, _ in chunks:
        starts.append(blocks)
        blocks += len(sequence.table)
    tables = torch.zeros(len(chunks), max(len(c[0].table) for c in chunks), dtype=torch.int32)
    for row, (start, (sequence, _, _)) in enumerate(zip(starts, chunks, strict=True)):
        tables[row, : len(sequence.table)] = sequence.table + start
    pool = torch.cat([sequence.cache for sequence, _, _ in chunks])
    counts = [count for _, _, count in chunks]
    meta = AttentionMeta(
        cu_seqlens_q=torch.tensor([0, *counts]).cumsum(0).int(),
        seq_lens=torch.tensor([first + count for _, first, count in chunks]).int(),
        block_tables=tables,
        slot_mapping=torch.zeros(sum(counts), dtype=torch.int32),
        positions=torch.cat([torch.arange(f, f + n) for _, f, n in chunks]),
        block_size=Sequence.block_size,
        query_lens=counts,
        seq_len_bounds=[first + count for _, first, count in chunks],
    )
    q = torch.cat([sequence.q[first : first + count] for sequence, first, count in chunks])
    return torch.split(paged(q, pool[:, 0], pool[:, 1], meta, 0.125, **extras), counts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 100])
def test_attention_of_prompts_chunks_and_decodes(dtype, window):
    draw = random.Random(1)
    lengths = (400, 129, 17)
    sequences = [Sequence(length, dtype) for length in lengths]
    whole = [attend(invariant_attn.paged, [(s, 0, len(s.q))], window=window)[0] for s in sequences]
    for _ in range(12):
        chunks, wanted = [], []
        for _ in range(draw.choice((1, 2, 9))):
            number = draw.randrange(3)
            count = min(draw.choice((1, 1, 2, 3, 4, 16, 100)), lengths[number])
            first = draw.randint(0, lengths[number] - count)
            chunks.append((sequences[number], first, count))
            wanted.append(whole[number][first : first + count])
        for part, expected in zip(
            attend(invariant_attn.paged, chunks, window=window), wanted, strict=True
        ):
            assert torch.equal(part, expected)


@pytest.mark.parametrize("head_dim", [20, 24, 40, 64])
def test_narrow_heads(head_dim):
    cache, q = torch.randn(9, 16, 1, head_dim), torch.randn(6, 4, head_dim)

    def alone(rows, tables):
        count = len(rows)
        meta = AttentionMeta(
            cu_seqlens_q=torch.arange(count + 1).int(),
            seq_lens=torch.full((count,), 30).int(),
            block_tables=tables,
            slot_mapping=torch.zeros(count, dtype=torch.int32),
            positions=torch.full((count,), 29),
            block_size=16,
            query_lens=[1] * count,
            seq_len_bounds=[30] * count,
        )
        return invariant_attn.paged(rows, cache, cache, meta, 0.2)

    tables = torch.randint(0, 9, (6, 2)).int()
    whole = alone(q, tables)
    for row in range(6):
        assert torch.equal(alone(q[row : row + 1], tables[row : row + 1])[0], whole[row])


@pytest.mark.parametrize("sizes", [(4, 32, 24, 300), (3, 20, 24, 6), (16, 576, 128, 130)])
def test_sparse_attention(sizes):
    num_heads, head_dim, num_rows, num_extra = sizes
    count = 130 if head_dim > 100 else 700
    caches = torch.randn(2, 9, 16, head_dim)
    rows = torch.randint(-1, 9 * 16, (count, num_rows)).int()
    extra_rows = torch.randint(0, 9 * 16, (count, num_extra)).int()
    seen = torch.randint(0, num_extra + 1, (count, 1))
    extra_rows[torch.arange(num_extra) >= seen] = -1
    sinks = torch.randn(num_heads)

    def attend(q, rows, extra_rows):
        width = int((extra_rows >= 0).sum(dim=1).max())  # no more than the batch needs
        return sparse_attn.sparse_mla(
            q, caches[0], rows, 0.1, head_dim, sinks, caches[1], extra_rows[:, :width]
        )

    check_rows(attend, torch.randn(count, num_heads, head_dim), rows, extra_rows)


def test_the_quick_ones_do_round_by_batch():
    """Otherwise these tests would prove nothing."""
    x, weight = torch.randn(70, 576), torch.randn(960, 576)
    with pytest.raises(AssertionError):
        check_rows(lambda rows: gemm.dense(rows, weight), x)
    sequence = Sequence(300, torch.float32)
    (whole,) = attend(attn.paged, [(sequence, 0, 300)])
    parts = [attend(attn.paged, [(sequence, t, 1)])[0] for t in range(290, 300)]
    assert not torch.equal(torch.cat(parts), whole[290:])
