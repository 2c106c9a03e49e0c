"""Runs attention of long chunks in Triton's interpreter, with torch's fused attention for the CPU
in the place of cuDNN's, and prints how far it is from the reference, as JSON.

    TRITON_INTERPRET=1 python interpret_chunks.py
"""

import json
from itertools import accumulate, product
from types import SimpleNamespace

import torch
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.reference.attn import mla_prefill as expanded_reference
from deepinfer_core.ops.reference.attn import paged as paged_reference
from deepinfer_cuda.kernels import latent_prefill, long_chunks, paged

BLOCK_SIZE, NUM_HEADS = 4, 6
KINDS = {
    "whole": [(23, 23)],
    "whole blocks": [(24, 24)],
    "short history": [(13, 24)],
    "one before": [(20, 21)],
    "long history": [(5, 29)],
    "one query": [(1, 9)],
    "two": [(13, 24), (8, 8)],
    "long and short": [(13, 24), (1, 9), (12, 12), (3, 7)],
}
"""Queries and length of each request."""
LONG = 8


def make_meta(requests, generator):
    counts, lengths = zip(*requests, strict=True)
    widest = max(-(-length // BLOCK_SIZE) for length in lengths)
    blocks = torch.randperm(len(requests) * widest, generator=generator) + 1
    positions = [torch.arange(length - count, length) for count, length in requests]
    return AttentionMeta(
        cu_seqlens_q=torch.tensor([0, *accumulate(counts)], dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_tables=blocks.view(len(requests), widest).int(),
        slot_mapping=torch.zeros(sum(counts), dtype=torch.int32),
        positions=torch.cat(positions),
        block_size=BLOCK_SIZE,
        query_lens=list(counts),
        seq_len_bounds=list(lengths),
    )


def make_pool(meta, *shape, generator):
    """Pages of two layers; the view of one of them."""
    num_blocks = meta.block_tables.numel() + 1
    return torch.randn(num_blocks, 2, *shape, generator=generator).half()[:, 1]


def try_paged(requests, num_kv_heads):
    generator = torch.Generator().manual_seed(len(requests))
    meta = make_meta(requests, generator)
    pool = make_pool(meta, 2, BLOCK_SIZE, num_kv_heads, 16, generator=generator)
    q = torch.randn(len(meta.positions), NUM_HEADS, 16, generator=generator).half()
    caches = (pool[:, 0], pool[:, 1])
    plan = paged.plan(
        SimpleNamespace(
            dim={"num_q_heads": 6, "num_kv_heads": num_kv_heads, "head_dim": 16}.get,
            dtype="float16",
        ),
        meta,
    )
    tiles = plan or paged.plan_tiles(meta, LONG)
    found = paged.paged(q, *caches, meta, 0.3, plan=tiles)
    return distance(found, paged_reference(q.float(), *(x.float() for x in caches), meta, 0.3))


def try_expanded(requests):
    generator = torch.Generator().manual_seed(len(requests))
    meta = make_meta(requests, generator)
    cache = make_pool(meta, BLOCK_SIZE, 16 + 4, generator=generator)
    weight = torch.randn(NUM_HEADS, 8 + 12, 16, generator=generator).half() / 4
    q = torch.randn(len(meta.positions), NUM_HEADS, 8 + 4, generator=generator).half()
    found = latent_prefill.mla_prefill(q, cache, weight, meta, 0.3)
    return distance(found, expanded_reference(q.float(), cache.float(), weight.float(), meta, 0.3))


def distance(found, expected):
    return float((found.float() - expected).abs().max())


def main():
    paged.MIN_LONG, latent_prefill.MIN_FUSED = LONG, 1
    found = {}
    calls = []
    parts = long_chunks.attend_parts
    for fused, (kind, requests) in product((True, False), KINDS.items()):
        long_chunks.is_fused = lambda *_, fused=fused: fused
        for num_kv_heads in (6, 2):
            paged.MIN_LONG = 1 if len(requests) == 1 else LONG
            name = f"paged {kind} {num_kv_heads} {'parts' if fused else 'whole'}"
            found[name] = try_paged(requests, num_kv_heads)

    def counted(*args):
        calls.append(args)
        return parts(*args)

    latent_prefill.attend_parts = counted
    for kind, requests in KINDS.items():
        calls.clear()
        found[f"expanded {kind}"] = try_expanded(requests)
        assert len(calls) == len(requests), "not the way under test"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
