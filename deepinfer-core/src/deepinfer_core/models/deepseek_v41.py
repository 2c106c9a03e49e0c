"""DeepSeek-V4.1-Flash: rows shared between layers, delayed hyper-connections, an n-gram memory.

DeepSeek-V4.1 (arXiv:2609.19969), section 2. Parameters have the released names, see `stored_name`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from deepinfer_core.models.deepseek_v41_config import (
    V41Config,
    plan_shared_caches,
    read_v41_config,
)
from deepinfer_core.models.interface import Vocabulary
from deepinfer_core.models.layers.engram import NgramWindows
from deepinfer_core.models.layers.hyper_connection import stream_mean
from deepinfer_core.models.layers.tail import take_tail
from deepinfer_core.models.layers.v41_layer import V41Layer
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.stream_model import StreamModel
from deepinfer_core.models.vision.model import SeeingModel
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import ForwardBatch


class DeepseekV41(StreamModel, SeeingModel):
    """Rows shared between layers, delayed residual streams, a memory of n-grams, a vision tower.

    Args and errors are those of `CausalModel`.
    """

    kv_formats = ("288+68", "528+68", "584+68", "584+132")

    def __init__(self, config: V41Config, ops: OpTable, *, dtype: str) -> None:
        super().__init__(config, ops, dtype=dtype)
        self.config = config
        self.history_len = config.history_len
        self._layer_kvs, caches = plan_shared_caches(config, dtype)
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
            hidden_size=config.hidden_size,
        )

    @classmethod
    def read_config(cls, raw: RawConfig) -> V41Config:
        """See `CausalModel.read_config`."""
        return read_v41_config(raw)

    @staticmethod
    def stored_name(name: str) -> str:
        """The released name of a parameter."""
        return StreamModel.stored_name(SeeingModel.stored_name(name))

    def read_vocabulary(self, vocabulary: Vocabulary) -> None:
        """See `models.interface.ReadsVocabulary`: the memory hashes what tokens look like."""
        if self.ngrams is not None:
            self.ngrams.read_vocabulary(vocabulary, self.vocab_size)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, C] after the last norm; writes the caches of the T tokens."""
        hidden_states, _ = self._run_layers(batch, ())
        return hidden_states

    @torch.inference_mode()
    def forward_with_features(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """What `forward` gives, and what DSpark reads.

        Returns:
            hidden states [T, C], and [T, k, D], the mean of the streams that enter each of its k
            layers, the memory included.
        """
        assert self.config.dspark is not None  # nobody asks without a drafter
        hidden_states, taps = self._run_layers(batch, self.config.dspark.target_layers)
        return hidden_states, torch.stack(taps, dim=1)

    def _run_layers(
        self, batch: ForwardBatch, tapped: Sequence[int]
    ) -> tuple[Tensor, list[Tensor]]:
        """What `forward` gives, and the means of the streams before the tapped layers."""
        plain, scaled = self.rotations(batch)
        n = self.config.hyper.num_streams
        embedded = self.put_images(self.embed(batch.input_ids), batch.images)
        streams = embedded.unsqueeze(1).repeat(1, n, 1)
        pre = torch.zeros(len(streams), n, device=streams.device)
        pre[:, 0] = 1.0  # all streams are equal
        classes = None if self.ngrams is None else self.ngrams(batch)
        is_image = None if batch.images is None else batch.images.is_image
        taps = []
        num_tokens, cut = len(streams), self.config.last_source
        trims = self.config.decoder_replay and cut >= 0
        tail = take_tail(batch, self.config.window_size) if trims else None
        for index, layer in enumerate(cast(Iterable[V41Layer], self.layers)):
            if layer.engram is not None:
                streams = layer.engram(streams, classes, is_image)
            if index in tapped:
                taps.append(stream_mean(streams))
            cos_sin = scaled if layer.reads_rows else plain
            streams, pre = layer(streams, pre, batch, cos_sin, tail if index == cut else None)
            if tail is not None and index == cut:
                batch = tail.later
        hidden_states: Tensor = self.norm(self.collapse(streams, pre))
        if tail is not None:
            hidden_states = tail.spread(hidden_states, num_tokens)
            taps = [tap if len(tap) == num_tokens else tail.spread(tap, num_tokens) for tap in taps]
        return hidden_states, taps
