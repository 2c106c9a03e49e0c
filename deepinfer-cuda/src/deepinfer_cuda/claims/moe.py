"""Mixtures of experts."""

from __future__ import annotations

from deepinfer_core.plugin_api import KernelSpec, Problem, Reason

from deepinfer_cuda.claims.claim import INVARIANT, LAWS, OLDEST_E4M3, claim, since
from deepinfer_cuda.claims.coded import may_round

MIN_COLUMNS = 8
"""Of a tile, which a power of two that divides the features fills."""
SCHEMES = ("fp8_block128", "fp8_block32", "mxfp4")
FEATURES = ("limit", "expert_map")


def has_columns(problem: Problem) -> bool | Reason:
    """Whether the experts' features can be cut into tiles."""
    size = problem.dim("intermediate_size")
    if size is None or size % MIN_COLUMNS == 0:
        return True
    return Reason(f"{size} features of an expert are no multiple of {MIN_COLUMNS}")


def may_round_tiles(problem: Problem) -> bool | Reason:
    """Whether the model bears rounded rows, and there are tiles of them."""
    permission = may_round(problem)
    return has_columns(problem) if permission is True else permission


def _experts(op: str, target: str, schemes: tuple[str, ...] = ()) -> list[KernelSpec]:
    return [
        claim(
            op,
            f"experts:{target}",
            *FEATURES,
            laws=LAWS,
            schemes=schemes,
            supports=has_columns,
        ),
        claim(
            op,
            f"experts:{target}_invariant",
            *FEATURES,
            laws=INVARIANT,
            schemes=schemes,
            supports=has_columns,
            provider="cuda.triton_invariant",
            priority=5,
        ),
    ]


KERNELS = (
    claim(
        "moe.route",
        "route:route",
        *("bias", "image_bias", "groups", "renormalize", "sigmoid", "sqrtsoftplus", "hash_ids"),
    ),
    *_experts("moe.experts", "experts"),
    *(since(OLDEST_E4M3, kernel) for kernel in _experts("moe.coded", "coded", SCHEMES)),
    since(
        OLDEST_E4M3,
        claim(
            "moe.coded",
            "experts:coded_rounded",
            *(*FEATURES, "rounded_rows"),
            laws=LAWS,
            dtypes=("bfloat16", "float16"),
            schemes=("fp8_block128",),
            supports=may_round_tiles,
            provider="cuda.triton_rounded",
            priority=11,
        ),
    ),
)
