"""Attention over the paged cache, and to latents and chosen rows."""

from __future__ import annotations

from deepinfer_core.plugin_api import KernelSpec, Problem, Reason

from deepinfer_ascend.claims.claim import LAWS, RECORDED, claim
from deepinfer_ascend.soc import Soc

MAX_DIM, DIM_UNIT, MAX_QUERIES_PER_KEY = 512, 16, 64
"""Of the fused operator for inference."""
HEAD_DIMS = tuple(range(DIM_UNIT, MAX_DIM + 1, DIM_UNIT))
LATENT_DIM, ROPE_DIM = 512, 64
"""Of the operator of sparse attention."""
HEADS = (16, 1, 2, 4, 8, 32, 64, 128)
INDEX_DIM, MAX_INDEX_HEADS, MAX_TOP_K = 128, 64, 2048
INDEX_HEADS_950 = (16, 8, 24, 32, 64)
# Lengths come from the host: a recorded step would read as much as the longest request.
FROM_HOST = LAWS


def has_few_heads(problem: Problem) -> bool | Reason:
    """Whether the operator has room for the queries of a key."""
    queries, keys = problem.dim("num_q_heads"), problem.dim("num_kv_heads")
    if queries is None or keys is None or queries // keys <= MAX_QUERIES_PER_KEY:
        return True
    return Reason(f"{queries // keys} query heads share a key, at most {MAX_QUERIES_PER_KEY} can")


def fits_latents(problem: Problem) -> bool | Reason:
    """Whether one head of the operator holds a row."""
    return _fits((problem.dim("kv_rank") or 0) + (problem.dim("rope_head_dim") or 0))


def fits_expanded(problem: Problem) -> bool | Reason:
    keys = (problem.dim("nope_head_dim") or 0) + (problem.dim("rope_head_dim") or 0)
    return _fits(max(keys, problem.dim("v_head_dim") or 0))


def fits_rows(problem: Problem) -> bool | Reason:
    return _fits(problem.dim("head_dim") or 0)


def fits_index(problem: Problem) -> bool | Reason:
    """Whether the indexer has room for these heads and counts so far."""
    heads, top_k = problem.dim("num_q_heads") or 0, problem.dim("top_k") or 0
    if heads <= MAX_INDEX_HEADS and top_k <= MAX_TOP_K:
        return True
    return Reason(f"{heads} heads and {top_k} tokens, at most {MAX_INDEX_HEADS} and {MAX_TOP_K}")


def _fits(size: int) -> bool | Reason:
    return True if size <= MAX_DIM else Reason(f"rows of {size} numbers, at most {MAX_DIM} fit")


def kernels(soc: Soc) -> list[KernelSpec]:
    return [*_dense(), *_sparse(), _index(soc)]


def _dense() -> list[KernelSpec]:
    return [
        claim(
            "attn.paged",
            "paged:paged",
            *("varlen", "window", "lse_out", "strided_cache"),
            laws=FROM_HOST,
            dims={"head_dim": HEAD_DIMS},
            plan="groups:plan",
            supports=has_few_heads,
        ),
        claim(
            "attn.mla",
            "latent:mla",
            *("varlen", "lse_out", "strided_cache"),
            laws=FROM_HOST,
            plan="groups:plan",
            supports=fits_latents,
        ),
        claim(
            "attn.mla",
            "latent:mla_by_rows",
            *("varlen", "strided_cache"),
            laws=FROM_HOST,
            dims={"kv_rank": (LATENT_DIM,), "rope_head_dim": (ROPE_DIM,), "num_q_heads": HEADS},
            provider="ascend.sparse",
        ),
        claim(
            "attn.mla_prefill",
            "latent:mla_prefill",
            *("varlen", "lse_out", "strided_cache"),
            laws=FROM_HOST,
            plan="groups:plan",
            supports=fits_expanded,
        ),
    ]


def _sparse() -> list[KernelSpec]:
    return [
        claim(
            "attn.sparse_mla",
            "sparse:sparse_mla",
            *("sinks", "lse_out", "strided_cache"),
            laws=RECORDED,
            supports=fits_rows,
        ),
        claim(
            "attn.sparse_mla",
            "sparse:sparse_latents",
            "strided_cache",
            laws=RECORDED,
            dims={
                "head_dim": (LATENT_DIM + ROPE_DIM,),
                "value_dim": (LATENT_DIM,),
                "num_q_heads": HEADS,
            },
            provider="ascend.sparse",
        ),
    ]


def _index(soc: Soc) -> KernelSpec:
    is_wide = "float32_weights" in soc.features
    heads = {} if is_wide else {"num_q_heads": INDEX_HEADS_950}
    return claim(
        "index.select",
        "index:select" if is_wide else "index:select_in_16_bits",
        "strided_cache",
        laws=FROM_HOST,
        dims={"head_dim": (INDEX_DIM,), **heads},
        supports=fits_index,
    )
