"""Llama and the families that share its layers: SmolLM2, Mistral."""

from __future__ import annotations

from deepinfer_core.models.decoder import DecoderModel
from deepinfer_core.models.decoder_config import DecoderConfig, read_decoder_config, read_windows
from deepinfer_core.models.raw_config import RawConfig

MISTRAL_WINDOW_SIZE = 4096
"""Of a Mistral configuration that does not mention its window; null means none."""


class Llama(DecoderModel):
    """Grouped-query attention without windows; biases where the configuration asks for them."""

    @classmethod
    def read_config(cls, raw: RawConfig) -> DecoderConfig:
        has_bias = raw.flag("attention_bias", False)
        return read_decoder_config(
            raw,
            windows=read_windows(raw, window_size=raw.optional_integer("sliding_window")),
            qkv_bias=has_bias,
            o_bias=has_bias,
            mlp_bias=raw.flag("mlp_bias", False),
        )


class Mistral(DecoderModel):
    """Llama with a sliding window over every layer, or none."""

    @classmethod
    def read_config(cls, raw: RawConfig) -> DecoderConfig:
        window_size = (
            raw.optional_integer("sliding_window")
            if "sliding_window" in raw.fields
            else MISTRAL_WINDOW_SIZE
        )
        return read_decoder_config(raw, windows=read_windows(raw, window_size=window_size))
