"""DeepSeek-V3, which is also V3.1 and R1.

DeepSeek-AI 2024, arXiv:2412.19437: latent attention, and experts that a sigmoid router picks in
groups. Reads configurations as released and as transformers writes them.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.decoder import DecoderModel
from deepinfer_core.models.decoder_config import (
    DecoderConfig,
    LatentConfig,
    MoeConfig,
    read_decoder_config,
    read_windows,
)
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.rope_config import RopeConfig
from deepinfer_core.runtime.batch import ForwardBatch


class DeepseekV3(DecoderModel):
    """Latent attention, and beyond the first layers routed experts with a shared one."""

    @classmethod
    def read_config(cls, raw: RawConfig) -> DecoderConfig:
        latent = LatentConfig(
            q_rank=raw.optional_integer("q_lora_rank"),
            kv_rank=raw.size("kv_lora_rank"),
            nope_head_dim=raw.size("qk_nope_head_dim"),
            rope_head_dim=raw.size("qk_rope_head_dim"),
            v_head_dim=raw.size("v_head_dim"),
        )
        has_bias = raw.flag("attention_bias", False)
        config = read_decoder_config(
            raw,
            windows=read_windows(raw, window_size=None),
            qkv_bias=has_bias,
            o_bias=has_bias,
            latent=latent,
        )
        rope = replace(config.rope, is_interleaved=raw.flag("rope_interleave", True))
        return replace(
            config,
            num_kv_heads=1,
            rope=rope,
            moe=_read_moe(raw),
            attention_scale=config.attention_scale * _mscale(rope) ** 2,
            num_predict_layers=raw.integer("num_nextn_predict_layers", 0),
        )

    def embed_ids(self, token_ids: Tensor) -> Tensor:
        """[N] int32 -> [N, C]."""
        embeddings: Tensor = self.model.embed_tokens(token_ids)
        return embeddings

    def forward_with_features(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """What `forward` gives, and what a drafter reads: the same."""
        hidden_states = self.forward(batch)
        return hidden_states, hidden_states

    def is_redundant(self, name: str) -> bool:
        # The layers after the last one predict further tokens and are not part of this model.
        parts = name.split(".")
        if parts[:2] == ["model", "layers"] and parts[2].isdigit():
            return int(parts[2]) >= self.config.num_layers or super().is_redundant(name)
        return super().is_redundant(name)


def _mscale(rope: RopeConfig) -> float:
    """By what yarn sharpens scores; cosines and sines carry the rest, see `attention_factor`."""
    if rope.rope_type != "yarn" or not rope.mscale_all_dim or rope.factor <= 1:
        return 1.0
    return 0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0


def _read_moe(raw: RawConfig) -> MoeConfig:
    num_experts, top_k = raw.size("n_routed_experts"), raw.size("num_experts_per_tok")
    num_groups, top_groups = raw.size("n_group", 1), raw.size("topk_group", 1)
    if num_experts % num_groups:
        raise raw.malformed("n_group", num_groups, f"a divisor of {num_experts} experts")
    if top_groups > num_groups:
        raise raw.malformed("topk_group", top_groups, f"at most n_group, {num_groups}")
    reachable = top_groups * num_experts // num_groups
    if top_k > reachable:
        raise raw.malformed(
            "num_experts_per_tok", top_k, f"at most {reachable}, the experts of {top_groups} groups"
        )
    for name, only in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if (found := raw.text(name, only)) != only:
            raise ModelLoadError(f"{raw.source}: {name} {found!r}; only {only} is supported")
    if (step := raw.integer("moe_layer_freq", 1)) != 1:
        raise raw.malformed("moe_layer_freq", step, "1: experts in every layer after the first")
    return MoeConfig(
        num_experts=num_experts,
        num_experts_per_token=top_k,
        intermediate_size=raw.size("moe_intermediate_size"),
        renormalize=raw.flag("norm_topk_prob", True),
        layers=frozenset(
            range(raw.integer("first_k_dense_replace", 0), raw.size("num_hidden_layers"))
        ),
        scoring="sigmoid",
        has_bias=True,
        num_groups=num_groups,
        top_groups=top_groups,
        scale=raw.number("routed_scaling_factor", 1.0),
        wide_router=True,
        num_shared_experts=raw.integer("n_shared_experts", 1),
    )
