"""The pre-norm decoder that every dense and MoE family here shares.

Families differ in their configuration only; each has a small class that reads it. Parameter names
follow the checkpoints, save where a layer fuses several tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.decoder_config import DecoderConfig
from deepinfer_core.models.layers.decoder_layer import DecoderLayer
from deepinfer_core.models.layers.embedding import VocabMatrix
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.rotary import RotaryTable
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import ForwardBatch


class DecoderStack(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, ops: OpTable, config: DecoderConfig, *, dtype: str) -> None:
        super().__init__()
        self.embed_tokens = VocabMatrix(
            ops, config.vocab_size, config.hidden_size, dtype=dtype, role="embed"
        )
        self.layers = nn.ModuleList(
            DecoderLayer(ops, config, layer, dtype=dtype) for layer in range(config.num_layers)
        )
        self.norm = RMSNorm(
            ops, config.hidden_size, config.norm_eps, dtype=dtype, role="final.norm", residual=True
        )
        self.rotary = RotaryTable(config.rope)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, C] of the T packed tokens."""
        attention, positions = batch.attention, batch.positions
        longest = max((meta.max_seq_len for meta in attention.groups), default=0)
        cos_sin = self.rotary.cos_sin(longest, positions.device)
        x, residual = self.embed_tokens(batch.input_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, positions, cos_sin, attention)
        x, _ = self.norm.add_norm(x, residual)
        return x


class DecoderModel(CausalModel):
    """A stack of alike layers with one residual stream; see `CausalModel`."""

    def __init__(self, config: DecoderConfig, ops: OpTable, *, dtype: str) -> None:
        super().__init__(config, ops, dtype=dtype)
        self.config, self.mesh = config, ops.mesh
        self.model = DecoderStack(ops, config, dtype=dtype)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else VocabMatrix(
                ops, config.vocab_size, config.hidden_size, dtype=dtype, role="lm_head"
            )
        )

    def layer_kv(self) -> list[LayerKV]:
        """What each cache stores per token: one per layer, then those of the indexers."""
        config, dtype = self.config, str(self.dtype).removeprefix("torch.")
        if config.latent is not None:
            return [kind for kind in config.latent_kvs(dtype) for _ in range(config.num_layers)]
        share = self.mesh.share_or_repeat(config.num_kv_heads, "key and value heads")
        return [
            LayerKV(
                kind="full" if window_size is None else "window",
                num_kv_heads=share.size_of(config.num_kv_heads),
                head_dim=config.head_dim,
                dtype_bytes=self.dtype.itemsize,
                window_size=window_size,
                dtype=dtype,
            )
            for window_size in config.windows
        ]

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, C] after the last norm; writes keys and values of the T tokens."""
        hidden_states: Tensor = self.model(batch)
        return hidden_states

    def is_redundant(self, name: str) -> bool:
        """Whether a checkpoint tensor repeats what the model has or computes itself."""
        if name.endswith(("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")):
            return True
        return name == "lm_head.weight" and self.lm_head is None

    @property
    def head_weight(self) -> Tensor:
        return (self.model.embed_tokens if self.lm_head is None else self.lm_head).weight
