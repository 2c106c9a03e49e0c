"""Attention of long chunks equals the reference; Triton's kernels around it are interpreted."""

import json
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from deepinfer_core.ops.meta import AttentionMeta

pytest.importorskip("triton")
PROGRAM = Path(__file__).parent / "interpret_chunks.py"


def test_chunks_of_every_kind_equal_the_reference(run_program):
    found = json.loads(run_program(PROGRAM, TRITON_INTERPRET="1"))
    assert {name.split()[0] for name in found} == {"paged", "expanded"}
    wrong = {name: distance for name, distance in found.items() if not distance < 2e-3}
    assert wrong == {}


def test_layers_with_tiles_of_other_sizes_share_none():
    """A second model as a drafter once took the target's tiles, whatever its own size was."""
    from deepinfer_cuda.kernels.paged import MIN_LONG, short_tiles

    lens = [MIN_LONG, 300]
    positions = torch.cat([torch.arange(count) for count in lens])
    meta = AttentionMeta(
        cu_seqlens_q=torch.tensor([0, *accumulate(lens)], dtype=torch.int32),
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        block_tables=torch.zeros(2, 64, dtype=torch.int32),
        slot_mapping=torch.zeros(sum(lens), dtype=torch.int32),
        positions=positions,
        block_size=16,
        query_lens=lens,
        seq_len_bounds=lens,
    )

    def count(group):
        q = torch.empty(sum(lens), 2 * group, 64, dtype=torch.bfloat16)
        tiles = short_tiles(q, torch.empty(1, 16, 2, 64, dtype=torch.bfloat16), meta)
        assert short_tiles(q, torch.empty(1, 16, 2, 64, dtype=torch.bfloat16), meta) is tiles
        return len(tiles.firsts)

    assert (count(1), count(4), count(1)) == (3, 10, 3)  # of 128 and 32 queries
