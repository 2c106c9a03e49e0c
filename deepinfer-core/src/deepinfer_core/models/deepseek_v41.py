"""DeepSeek-V4.1-Flash: rows shared between layers, delayed hyper-connections, an n-gram memory.

DeepSeek-V4.1 (arXiv:2609.19969), section 2. Parameters have the released names, see `stored_name`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.deepseek_v4 import DeepseekV4
from deepinfer_core.models.deepseek_v41_config import (
    SharedCaches,
    V41Config,
    plan_shared_caches,
    read_v41_config,
)
from deepinfer_core.models.interface import Vocabulary
from deepinfer_core.models.layers.embedding import VocabMatrix
from deepinfer_core.models.layers.engram import Engram, NgramWindows
from deepinfer_core.models.layers.hyper_connection import DelayedHyperConnection
from deepinfer_core.models.layers.moe import SparseMoE
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.rotary import RotaryTable
from deepinfer_core.models.layers.shared_attention import SharedAttention
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import ForwardBatch


class V41Layer(nn.Module):
    """Perhaps the memory; attention, then experts, each behind hyper-connections and a norm."""

    def __init__(
        self, ops: OpTable, config: V41Config, layer: int, caches: SharedCaches, *, dtype: str
    ) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.norm_eps
        self.reads_rows = config.compress_ratios[layer] > 0
        self.engram = None
        if config.engram is not None and layer in config.engram.layers:
            self.engram = Engram(ops, config, layer, dtype=dtype)
        self.hc_attn = DelayedHyperConnection(ops, config, dtype=dtype, role="attn.hc")
        self.attn_norm = RMSNorm(ops, size, eps, dtype=dtype, role="attn.norm")
        self.attn = SharedAttention(ops, config, layer, caches, dtype=dtype)
        self.hc_ffn = DelayedHyperConnection(ops, config, dtype=dtype, role="mlp.hc")
        self.ffn_norm = RMSNorm(ops, size, eps, dtype=dtype, role="mlp.norm")
        self.ffn = SparseMoE(ops, size, config.moe, dtype=dtype)

    def forward(
        self, streams: Tensor, pre: Tensor, batch: ForwardBatch, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Streams [T, n, D], and with which weights [T, n] the next sublayer reads them."""
        u, post, mix, attn_pre = self.hc_attn.read_with(streams, pre)
        y = self.attn(self.attn_norm(u), batch.positions, cos_sin, batch.attention)
        streams = self.hc_attn.write(y, streams, post, mix)
        u, post, mix, ffn_pre = self.hc_ffn.read_with(streams, attn_pre)
        is_image = None if batch.images is None else batch.images.is_image
        y = self.ffn(self.ffn_norm(u), is_image=is_image)
        return self.hc_ffn.write(y, streams, post, mix), ffn_pre


class DeepseekV41(CausalModel):
    """The text model of a DeepSeek-V4.1.

    Args and errors are those of `DecoderModel`.
    """

    def __init__(self, config: V41Config, ops: OpTable, *, dtype: str) -> None:
        size = config.hidden_size
        super().__init__(ops, vocab_size=config.vocab_size, hidden_size=size, dtype=dtype)
        self.config = config
        self.history_len = config.history_len
        self._layer_kvs, caches = plan_shared_caches(config, self.dtype.itemsize)
        self.embed = VocabMatrix(config.vocab_size, size, dtype=dtype)
        self.layers = nn.ModuleList(
            V41Layer(ops, config, layer, caches[layer], dtype=dtype)
            for layer in range(config.num_layers)
        )
        self.ngrams = None
        if config.engram is not None:
            self.ngrams = NgramWindows(config.engram, config.image_token_id)
        self.collapse = ops.bind(
            "hc.collapse",
            dtype=dtype,
            role="hc.head",
            hc_mult=config.hyper.num_streams,
            hidden_size=size,
        )
        self.norm = RMSNorm(ops, size, config.norm_eps, dtype=dtype, role="final.norm")
        self.head = VocabMatrix(config.vocab_size, size, dtype=dtype)
        self.rotary = RotaryTable(config.rope)
        self.compress_rotary = RotaryTable(config.compress_rope)

    @classmethod
    def read_config(cls, raw: RawConfig) -> V41Config:
        """See `DecoderModel.read_config`."""
        return read_v41_config(raw)

    @staticmethod
    def stored_name(name: str) -> str:
        """The released name of a parameter."""
        return DeepseekV4.stored_name(name)

    def is_redundant(self, name: str) -> bool:
        """Whether a checkpoint tensor is of a layer that predicts further tokens, or of images."""
        return name.startswith(("mtp.", "vision.", "aligner.", "image_"))

    @property
    def head_weight(self) -> Tensor:
        return self.head.weight

    def read_vocabulary(self, vocabulary: Vocabulary) -> None:
        """See `models.interface.ReadsVocabulary`: the memory hashes what tokens look like."""
        if self.ngrams is not None:
            self.ngrams.read_vocabulary(vocabulary, self.vocab_size)

    def layer_kv(self) -> list[LayerKV]:
        """What each cache stores per token, see `plan_shared_caches`."""
        return self._layer_kvs

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, C] after the last norm; writes the caches of the T tokens."""
        attention, positions = batch.attention, batch.positions
        longest = max((meta.max_seq_len for meta in attention.groups), default=0)
        plain = self.rotary.cos_sin(longest, positions.device)
        scaled = self.compress_rotary.cos_sin(longest, positions.device)
        n = self.config.hyper.num_streams
        streams = self._embed(batch).unsqueeze(1).repeat(1, n, 1)
        pre = torch.zeros(len(streams), n, device=positions.device)
        pre[:, 0] = 1.0  # all streams are equal
        classes = None if self.ngrams is None else self.ngrams(batch)
        is_image = None if batch.images is None else batch.images.is_image
        for layer in self.layers:
            if layer.engram is not None:
                streams = layer.engram(streams, classes, is_image)
            cos_sin = scaled if layer.reads_rows else plain
            streams, pre = layer(streams, pre, batch, cos_sin)
        hidden_states: Tensor = self.norm(self.collapse(streams, pre))
        return hidden_states

    def _embed(self, batch: ForwardBatch) -> Tensor:
        """[T, C]: of tokens, and of images where these stand."""
        embedded: Tensor = self.embed(batch.input_ids)
        if batch.images is not None:
            embedded = embedded.index_copy(0, batch.images.rows, batch.images.embeddings)
        return embedded
