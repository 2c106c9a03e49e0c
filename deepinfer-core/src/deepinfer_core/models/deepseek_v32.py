"""DeepSeek-V3.2: DeepSeek-V3 whose queries attend to the tokens that an indexer picks.

DeepSeek-AI 2025, DeepSeek-V3.2, section 2.1. Up to `index_topk` tokens it computes what V3 does.
"""

from __future__ import annotations

from dataclasses import replace

from deepinfer_core.models.decoder_config import DecoderConfig, IndexerConfig
from deepinfer_core.models.deepseek_v3 import DeepseekV3
from deepinfer_core.models.raw_config import RawConfig


class DeepseekV32(DeepseekV3):
    """DeepSeek-V3 with sparse attention: each query sees the tokens that its indexer picks."""

    kv_formats = ("656+132", "auto+132")

    @classmethod
    def read_config(cls, raw: RawConfig) -> DecoderConfig:
        config = super().read_config(raw)
        indexer = IndexerConfig(
            num_heads=raw.size("index_n_heads"),
            head_dim=raw.size("index_head_dim"),
            top_k=raw.size("index_topk"),
        )
        raw.size("q_lora_rank")  # the indexer reads this latent
        if config.latent is not None and indexer.head_dim < config.latent.rope_head_dim:
            raise raw.malformed(
                "index_head_dim",
                indexer.head_dim,
                f"at least qk_rope_head_dim, {config.latent.rope_head_dim}",
            )
        return replace(config, indexer=indexer)
