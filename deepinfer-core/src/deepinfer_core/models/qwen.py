"""Qwen2, Qwen2.5, Qwen3 and Qwen3-MoE."""

from __future__ import annotations

from dataclasses import replace

from deepinfer_core.models.decoder import DecoderModel
from deepinfer_core.models.decoder_config import (
    DecoderConfig,
    MoeConfig,
    read_decoder_config,
    read_windows,
)
from deepinfer_core.models.raw_config import RawConfig

QWEN3_HEAD_DIM = 128
"""Of a Qwen3 configuration that does not state it."""


def _window_size(raw: RawConfig) -> int | None:
    if not raw.flag("use_sliding_window", False):
        return None
    return raw.size("sliding_window", 4096)


class Qwen2(DecoderModel):
    """Llama with biases on the query, key and value projections, and windows in upper layers."""

    @classmethod
    def read_config(cls, raw: RawConfig) -> DecoderConfig:
        return read_decoder_config(
            raw,
            windows=read_windows(
                raw,
                window_size=_window_size(raw),
                first_window_layer=raw.integer("max_window_layers", 28),
            ),
            qkv_bias=True,
        )


class Qwen3(DecoderModel):
    """Norms on each query and key head instead of biases."""

    @classmethod
    def read_config(cls, raw: RawConfig) -> DecoderConfig:
        has_bias = raw.flag("attention_bias", False)
        return read_decoder_config(
            raw,
            windows=read_windows(
                raw,
                window_size=_window_size(raw),
                first_window_layer=raw.integer("max_window_layers", 28),
            ),
            qkv_bias=has_bias,
            o_bias=has_bias,
            qk_norm=True,
            default_head_dim=QWEN3_HEAD_DIM,
        )


class Qwen3Moe(DecoderModel):
    """Qwen3 with routed experts in every `decoder_sparse_step`-th layer."""

    @classmethod
    def read_config(cls, raw: RawConfig) -> DecoderConfig:
        has_bias = raw.flag("attention_bias", False)
        config = read_decoder_config(
            raw,
            windows=read_windows(raw, window_size=_window_size(raw)),
            qkv_bias=has_bias,
            o_bias=has_bias,
            qk_norm=True,
        )
        return replace(config, moe=_read_moe(raw))


def _read_moe(raw: RawConfig) -> MoeConfig:
    # Newer files say num_local_experts.
    num_experts = raw.integer("num_experts", raw.integer("num_local_experts", 128))
    num_experts_per_token = raw.integer("num_experts_per_tok", 8)
    if not 0 < num_experts_per_token <= num_experts:
        raise raw.malformed(
            "num_experts_per_tok", num_experts_per_token, f"between 1 and {num_experts} experts"
        )
    dense = set(raw.optional_list("mlp_only_layers", int) or ())
    step = raw.size("decoder_sparse_step", 1)
    return MoeConfig(
        num_experts=num_experts,
        num_experts_per_token=num_experts_per_token,
        intermediate_size=raw.size("moe_intermediate_size"),
        renormalize=raw.flag("norm_topk_prob", False),
        layers=frozenset(
            layer
            for layer in range(raw.size("num_hidden_layers"))
            if layer not in dense and (layer + 1) % step == 0
        ),
    )
