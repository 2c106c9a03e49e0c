"""Attention of long chunks over gathered keys equals the reference, on any device of torch."""

import sys
from pathlib import Path

import pytest
import torch
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.reference.attn import paged

sys.path.insert(0, str(Path(__file__).parents[3] / "deepinfer-cuda" / "src"))
from deepinfer_cuda.kernels.long_chunks import attend_long

BLOCK_SIZE = 4


@pytest.mark.parametrize(
    ("count", "length"),
    [(23, 23), (24, 24), (13, 24), (20, 21), (5, 29), (1, 9)],
    ids=["whole", "whole blocks", "short history", "one before", "long history", "one query"],
)
@pytest.mark.parametrize("num_kv_heads", [6, 2])
def test_chunks_of_every_kind_equal_the_reference(count, length, num_kv_heads):
    generator = torch.Generator().manual_seed(count)

    def noise(*shape):
        return torch.randn(shape, generator=generator)

    num_blocks = -(-length // BLOCK_SIZE)
    pool = noise(num_blocks + 3, 2, 2, BLOCK_SIZE, num_kv_heads, 16)  # pages of two layers
    k_cache, v_cache = pool[:, 1, 0], pool[:, 1, 1]
    q = noise(count, 6, 16)
    tables = torch.zeros(2, num_blocks + 2, dtype=torch.int32)
    tables[1, :num_blocks] = torch.randperm(num_blocks + 2, generator=generator)[:num_blocks] + 1
    meta = AttentionMeta(
        cu_seqlens_q=torch.tensor([0, 0, count], dtype=torch.int32),
        seq_lens=torch.tensor([1, length], dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.zeros(count, dtype=torch.int32),
        positions=torch.arange(length - count, length),
        block_size=BLOCK_SIZE,
        query_lens=[0, count],
        seq_len_bounds=[1, length],
    )
    found = attend_long(q, k_cache, v_cache, meta, 1, scale=0.3)
    expected = paged(q, k_cache, v_cache, meta, 0.3)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
