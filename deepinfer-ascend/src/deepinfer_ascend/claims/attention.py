"""Attention over the paged cache."""

from __future__ import annotations

from deepinfer_core.plugin_api import KernelSpec, Problem, Reason

from deepinfer_ascend.claims.claim import LAWS, claim
from deepinfer_ascend.soc import Soc

HEAD_DIMS = tuple(range(16, 513, 16))
"""Of the fused operator for inference."""
MAX_QUERIES_PER_KEY = 64


def has_few_heads(problem: Problem) -> bool | Reason:
    """Whether the operator has room for the queries of a key."""
    queries, keys = problem.dim("num_q_heads"), problem.dim("num_kv_heads")
    if queries is None or keys is None or queries // keys <= MAX_QUERIES_PER_KEY:
        return True
    return Reason(f"{queries // keys} query heads share a key, at most {MAX_QUERIES_PER_KEY} can")


def kernels(soc: Soc) -> list[KernelSpec]:
    del soc
    return [
        claim(
            "attn.paged",
            "paged:paged",
            *("varlen", "window", "lse_out", "strided_cache"),
            # Lengths come from the host: a recorded step would read as much as the longest request.
            laws=LAWS,
            dims={"head_dim": HEAD_DIMS},
            plan="paged:plan",
            supports=has_few_heads,
        )
    ]
