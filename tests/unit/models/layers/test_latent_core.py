"""Which form of latent attention serves which request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from deepinfer_core.models.decoder_config import LatentConfig
from deepinfer_core.models.layers.latent_core import (
    LatentCore,
    LatentProjection,
    min_expanded_queries,
)
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.table import OpTable, reference_table
from deepinfer_core.testing.cases.attn import make_meta
from torch import Tensor

LATENT = LatentConfig(q_rank=None, kv_rank=32, nope_head_dim=24, rope_head_dim=16, v_head_dim=20)
HEADS, BLOCK = 4, 16
ENOUGH = min_expanded_queries(LATENT)


def make_core(ops: OpTable) -> LatentCore:
    projection = LatentProjection(ops, HEADS, LATENT, dtype="float32")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        projection.weight.normal_(std=32**-0.5, generator=generator)
    return LatentCore(ops, LATENT, projection, 0.15, dtype="float32")


def spy(core: LatentCore, name: str, seen: list[tuple[str, list[int]]]) -> None:
    """Note the query lengths that a form is called with."""
    bound = getattr(core, name)
    kernel = bound.fn

    def noting(*args: Any, **options: Any) -> Any:
        meta = next(arg for arg in args if isinstance(arg, AttentionMeta))
        seen.append((name, list(meta.query_lens)))
        return kernel(*args, **options)

    bound.fn = noting


@torch.no_grad()
def attend(core: LatentCore, query_lens: list[int]) -> Tensor:
    """Over requests of which 30 tokens are in the cache."""
    requests = [(count, count + 30) for count in query_lens]
    lengths = [length for _, length in requests]
    width = -(-max(lengths) // BLOCK)
    tables = torch.arange(1, 1 + width * len(requests), dtype=torch.int32).view(-1, width)
    meta = make_meta(requests, lengths, tables, BLOCK, "cpu")
    generator = torch.Generator().manual_seed(1)
    num_tokens = sum(query_lens)
    q = torch.randn(num_tokens, HEADS, 24 + 16, generator=generator)
    q_rope = torch.randn(num_tokens, HEADS, 16, generator=generator)
    cache = torch.randn(tables.numel() + 1, BLOCK, 48, generator=generator)
    return core(q, q_rope, cache, meta)


@pytest.mark.parametrize(
    ("query_lens", "calls"),
    [
        ([1, ENOUGH - 1], [("absorbed", [1, ENOUGH - 1])]),
        ([ENOUGH, 300], [("expanded", [ENOUGH, 300])]),
        ([1, 300, 2, 270], [("expanded", [300, 270]), ("absorbed", [1, 2])]),
    ],
)
def test_long_chunks_are_expanded(
    query_lens: list[int], calls: list[tuple[str, list[int]]]
) -> None:
    core = make_core(reference_table())
    seen: list[tuple[str, list[int]]] = []
    expected = attend(make_core(reference_table(batch_invariant=True)), query_lens)
    for name in ("absorbed", "expanded"):
        spy(core, name, seen)
    torch.testing.assert_close(attend(core, query_lens), expected, atol=1e-5, rtol=0)
    assert seen == calls


def test_rows_whose_bits_must_not_depend_on_chunks_are_absorbed() -> None:
    assert make_core(reference_table()).expanded is not None
    assert make_core(reference_table(batch_invariant=True)).expanded is None


def test_how_many_queries_are_enough() -> None:
    released = replace(LATENT, kv_rank=512, nope_head_dim=128, rope_head_dim=64, v_head_dim=128)
    assert min_expanded_queries(released) == 256
    # A key costs 512 * 320 more and a pair 1024 - 320 fewer: 233 break even.
    assert min_expanded_queries(replace(released, v_head_dim=192)) == 349
    # Nothing is saved where latents are half as wide as a head's key and value.
    assert min_expanded_queries(replace(released, kv_rank=128)) > 10**9
