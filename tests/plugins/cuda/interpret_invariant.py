"""Runs kernels whose bits may not depend on the batch, in Triton's interpreter: each row alone and
with others, a chunk whole and in pieces. Prints op -> whether all bits agreed, as JSON.

    TRITON_INTERPRET=1 python interpret_invariant.py
"""

import json

import numpy as np
import torch
from deepinfer_core.testing.cases.attn import make_meta
from deepinfer_cuda.kernels import experts, invariant_paged, latent, sparse

BLOCK_SIZE = 8
LENGTH = 19
PIECES = [(0, 19, False), (5, 9, True), (18, 1, False), (18, 1, True)]
"""(first query, number of queries, whether another request is in the batch)."""


def attends_alike(attend, shape):
    """attend(queries, meta) -> o, of one request in each piece, with another one before it."""
    queries, other = torch.randn(LENGTH, *shape), torch.randn(3, *shape)
    num_blocks = -(-LENGTH // BLOCK_SIZE)
    own = torch.arange(1, num_blocks + 1, dtype=torch.int32)
    whole = None
    for first, count, has_other in PIECES:
        requests = [(3, 9)] * has_other + [(count, first + count)]
        tables = torch.zeros(len(requests), num_blocks + 1, dtype=torch.int32)
        tables[:has_other, :2] = own[-2:]
        tables[-1, :num_blocks] = own
        bounds = [length for _, length in requests]
        meta = make_meta(requests, bounds, tables, BLOCK_SIZE, "cpu")
        packed = torch.cat([*[other] * has_other, queries[first : first + count]])
        o = attend(packed, meta)[3 * has_other :]
        whole = o if whole is None else whole
        if not torch.equal(o, whole[first : first + count]):
            return False
    return True


def paged():
    k, v = torch.randn(2, 8, BLOCK_SIZE, 2, 16)
    return attends_alike(lambda q, meta: invariant_paged.paged(q, k, v, meta, 0.25), (4, 16))


def mla():
    cache = torch.randn(8, BLOCK_SIZE, 24)

    def attend(q, meta):
        return latent.mla_invariant(q[..., :16], q[..., 16:], cache, meta, 0.25)

    return attends_alike(attend, (2, 24))


def sparse_mla():
    q, cache = torch.randn(3, 2, 24), torch.randn(8, BLOCK_SIZE, 24)
    rows = torch.stack([torch.randperm(64)[:20] for _ in range(3)]).int()
    rows[2, 7:] = -1

    def attend(some):
        return sparse.sparse_mla_invariant(q[some], cache, rows[some], 0.25, value_dim=16)

    return rows_alike(attend, 3)


def mixture():
    x, w13, w2 = torch.randn(4, 32), torch.randn(4, 2 * 16, 32), torch.randn(4, 32, 16)
    ids = torch.stack([torch.randperm(4)[:2] for _ in range(4)]).int()
    weights = torch.rand(4, 2)

    def mix(some):
        return experts.experts_invariant(x[some], ids[some], weights[some], w13, w2)

    return rows_alike(mix, 4)


def rows_alike(compute, count):
    whole = compute(slice(0, count))
    parts = [slice(row, row + 1) for row in range(count)] + [slice(1, 3)]
    return all(torch.equal(compute(part), whole[part]) for part in parts)


def main():
    # The interpreter computes with numpy, which warns of log2(0) where a row has seen nothing.
    np.seterr(divide="ignore")
    torch.manual_seed(0)
    kernels = {"attn.paged": paged, "attn.mla": mla, "attn.sparse_mla": sparse_mla}
    found = {op: alike() for op, alike in (kernels | {"moe.experts": mixture}).items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
