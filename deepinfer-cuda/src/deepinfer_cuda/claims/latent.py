"""Attention to latents and to chosen rows, and the products around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from deepinfer_core.plugin_api import KernelSpec

from deepinfer_cuda.claims.claim import INVARIANT, LAWS, OLDEST, OLDEST_E4M3, claim, since

_VARLEN = ("varlen", "lse_out", "strided_cache")
_ROWS = ("sinks", "lse_out", "strided_cache")
_RECORDS = ("656", "584", "528", "528+288")
_SLOWER: dict[str, Any] = {"provider": "cuda.triton_invariant", "priority": 5}


def _before_e4m3(kernel: KernelSpec) -> KernelSpec:
    return replace(kernel, caps=replace(kernel.caps, arch=(OLDEST, "8.8")))


def _sparse(target: str, **fields: Any) -> KernelSpec:
    """With records, whose codes Triton knows from 8.9 on."""
    features = (*_ROWS, "records")
    kernel = claim("attn.sparse_mla", f"sparse:{target}", *features, schemes=_RECORDS, **fields)
    return since(OLDEST_E4M3, kernel)


def _index(target: str, **fields: Any) -> Iterator[KernelSpec]:
    """Likewise, and without records on older devices."""
    features = ("strided_cache", "candidates")
    name = f"index:{target}"
    coded = claim("index.select", name, *features, "records", schemes=("132", "68"), **fields)
    yield since(OLDEST_E4M3, coded)
    provider = fields.pop("provider", "cuda.triton") + "_plain"
    plain = claim("index.select", name, *features, provider=provider, **fields)
    yield _before_e4m3(plain)


KERNELS = (
    claim("attn.mla", "latent:mla", *_VARLEN, laws=LAWS, plan="latent:plan"),
    claim(
        "attn.mla",
        "latent:mla_invariant",
        *_VARLEN,
        laws=INVARIANT,
        plan="latent:plan_invariant",
        **_SLOWER,
    ),
    claim(
        "attn.mla_prefill",
        "latent_prefill:mla_prefill",
        *_VARLEN,
        laws=LAWS - {"graph_safe"},
        plan="latent_prefill:plan",
    ),
    _sparse("sparse_mla", laws=LAWS),
    _sparse("sparse_mla_invariant", laws=INVARIANT, **_SLOWER),
    _before_e4m3(
        claim(
            "attn.sparse_mla",
            "sparse:sparse_mla",
            *_ROWS,
            laws=LAWS,
            provider="cuda.triton_plain",
        ),
    ),
    *_index("select", laws=LAWS),
    *_index("select_invariant", laws=INVARIANT, **_SLOWER),
    claim("attn.latents", "latent_rows:latents", "interleaved", "strided_cache"),
    claim("gemm.batched", "batched:batched", laws=LAWS),
)
