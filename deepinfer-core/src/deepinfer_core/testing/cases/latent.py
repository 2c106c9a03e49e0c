"""Cases of the attention to latents, over the batches and hazards of `attn.paged`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.testing.case import Call, Case, Maker, OpCases, Sizes, flatten, wide
from deepinfer_core.testing.cases.attn import Geometry, PagedBuild, batches_around


@dataclass(frozen=True, slots=True)
class LatentBuild(PagedBuild):
    """Builds a call of `attn.mla`: one key head, whose first `rank` dims are the value."""

    rank: int = 0

    def arguments(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, meta: AttentionMeta
    ) -> dict[str, Any]:
        return {
            "q_latent": q[..., : self.rank],
            "q_rope": q[..., self.rank :],
            "cache": k_cache.squeeze(2),
            "meta": meta,
            "scale": self.geometry.scale,
        }

    def keys_and_values(
        self, batch: dict[str, Any], blocks: Tensor, offsets: Tensor, extras: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        k = wide(batch["k_cache"][blocks, offsets]).expand(-1, self.geometry.num_q_heads, -1)
        return k, k[..., : self.rank]

    def extras(self, make: Maker) -> dict[str, Any]:
        return {"return_lse": "lse_out" in self.features}


@dataclass(frozen=True, slots=True)
class ExpandedBuild(LatentBuild):
    """Builds a call of `attn.mla_prefill`, whose queries are the first dims of those made."""

    nope_dim: int = 0
    value_dim: int = 0

    def __call__(self, make: Maker, num_tokens: int) -> Call:
        call = PagedBuild.__call__(self, make, num_tokens)
        # Keys may be rounded, so that the normaliser is no better than they are.
        call.observe = lambda result: [part.to(make.dtype) for part in flatten(result)]
        return call

    @property
    def q_dim(self) -> int:
        return self.nope_dim + self.geometry.head_dim - self.rank

    def arguments(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, meta: AttentionMeta
    ) -> dict[str, Any]:
        kwargs = {"q": q[..., : self.q_dim], "cache": k_cache.squeeze(2)}
        return {**kwargs, "meta": meta, "scale": self.geometry.scale}

    def keys_and_values(
        self, batch: dict[str, Any], blocks: Tensor, offsets: Tensor, extras: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        rows = wide(batch["k_cache"][blocks, offsets]).squeeze(1)
        latents, shared = rows[:, : self.rank], rows[:, None, self.rank :]
        expanded = torch.einsum("sr,hdr->shd", latents, wide(extras["weight"]))
        k = expanded[..., : self.nope_dim]
        shared = shared.expand(-1, self.geometry.num_q_heads, -1)
        return torch.cat([k, shared], dim=2), expanded[..., self.nope_dim :]

    def extras(self, make: Maker) -> dict[str, Any]:
        shape = (self.geometry.num_q_heads, self.nope_dim + self.value_dim, self.rank)
        weight = make.normal(*shape, scale=self.rank**-0.5)
        return {"weight": weight, "return_lse": "lse_out" in self.features}


def latent_cases(sizes: Sizes) -> Sequence[Case]:
    cases = {}
    for num_heads, rank, rope_dim, size in ((16, 64, 16, 16), (3, 20, 6, 5)):
        shape = {
            "num_q_heads": sizes.pick("num_q_heads", num_heads),
            "kv_rank": sizes.pick("kv_rank", rank),
            "rope_head_dim": sizes.pick("rope_head_dim", rope_dim),
        }
        width = shape["kv_rank"] + shape["rope_head_dim"]
        geometry = Geometry(shape["num_q_heads"], 1, width, sizes.pick("block_size", size))
        for batch, requests in batches_around(geometry.block_size).items():
            is_varlen = any(query_len > 1 for query_len, _ in requests)
            for kind in ((), ("strided_cache",), ("lse_out",), ("strided_cache", "lse_out")):
                features = frozenset(kind) | ({"varlen"} if is_varlen else set())
                build = LatentBuild(geometry, requests, features, rank=shape["kv_rank"])
                name = "-".join((batch, *kind, "x".join(map(str, (*shape.values(), size)))))
                cases[name] = Case(name, build, features, shape, token_counts=(1,))
    return list(cases.values())


def expanded_cases(sizes: Sizes) -> Sequence[Case]:
    names = ("num_q_heads", "kv_rank", "nope_head_dim", "rope_head_dim", "v_head_dim")
    cases = {}
    for *wanted, size in ((16, 64, 32, 16, 32, 16), (6, 20, 6, 6, 20, 5)):
        shape = {name: sizes.pick(name, size) for name, size in zip(names, wanted, strict=True)}
        num_heads, rank, nope_dim, rope_dim, value_dim = shape.values()
        block_size = sizes.pick("block_size", size)
        geometry = Geometry(num_heads, 1, rank + rope_dim, block_size)
        for batch, requests in batches_around(block_size).items():
            is_varlen = any(query_len > 1 for query_len, _ in requests)
            for kind in ((), ("strided_cache", "lse_out")):
                features = frozenset(kind) | ({"varlen"} if is_varlen else set())
                build = ExpandedBuild(geometry, requests, features, None, rank, nope_dim, value_dim)
                name = "-".join((batch, *kind, "x".join(map(str, (*shape.values(), block_size)))))
                cases[name] = Case(name, build, features, shape, token_counts=(1,))
    return list(cases.values())


OPS = {
    "attn.mla": OpCases(latent_cases),
    "attn.mla_prefill": OpCases(expanded_cases),
}
