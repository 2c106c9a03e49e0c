"""`CausalModel`: what all models share, the output head over the last hidden states."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.layers.collectives import bind_gather, bind_sum
from deepinfer_core.models.layers.packed import Stored
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import ForwardBatch


class SizedConfig(Protocol):
    """What the head needs to know."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...


class CausalModel(Stored):
    """A causal language model. Construct on the meta device, then load weights.

    Implements `models.interface.Model`.

    Args:
        config: what `read_config` of the same class gave.
        ops: not frozen yet; every layer binds its ops here.
        dtype: of weights and activations: `float32`, `bfloat16` or `float16`.

    Raises:
        UnsupportedOpError: no kernel can serve one of the layers.
    """

    kv_formats: ClassVar[tuple[str, ...]] = ()
    """Values of `cache.kv_format` besides `auto`; a model with any has it in its config."""

    def __init__(self, config: SizedConfig, ops: OpTable, *, dtype: str) -> None:
        super().__init__()
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.vocab_size = config.vocab_size
        share = ops.mesh.share(config.vocab_size, "tokens of the vocabulary")
        self.gather_logits = bind_gather(ops, dtype=dtype, role="lm_head")
        self.sum_logits = bind_sum(ops, dtype=dtype, role="lm_head")
        num_rows = share.size_of(config.vocab_size)
        self.first_head_row = share.index * num_rows
        self.head_gemm = ops.bind(
            "gemm.dense",
            dtype=dtype,
            role="lm_head",
            in_features=config.hidden_size,
            out_features=num_rows,
        )

    @classmethod
    @abstractmethod
    def read_config(cls, raw: RawConfig) -> Any:
        """Normalise a checkpoint's configuration, to what the constructor takes.

        Raises:
            ModelLoadError: a field is missing, malformed or not supported; names file and field.
        """

    @property
    @abstractmethod
    def head_weight(self) -> Tensor:
        """[V, C] of the output head, or this rank's share of its rows."""

    @abstractmethod
    def layer_kv(self) -> list[LayerKV]:
        """What each cache stores per token."""

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, C] after the last norm; writes the caches of the T tokens."""

    @torch.inference_mode()
    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[L, C] -> [L, V] float32."""
        logits: Tensor = self.head_gemm(hidden_states, self.head_weight)
        if self.gather_logits is not None:
            logits = self.gather_logits(logits)
        return logits.float()

    @torch.inference_mode()
    def lm_head_chunk(self, hidden_states: Tensor, start: int, stop: int) -> Tensor:
        """[L, C] -> [L, stop - start] float32: the logits of one stretch of the vocabulary."""
        if self.sum_logits is None:
            logits: Tensor = self.head_gemm(hidden_states, self.head_weight[start:stop])
            return logits.float()
        # Each rank adds its columns to zeros: a stretch has more of some ranks than of others.
        weight, first = self.head_weight, self.first_head_row
        own = slice(max(start - first, 0), min(max(stop - first, 0), len(weight)))
        logits = hidden_states.new_zeros(len(hidden_states), stop - start)
        if own.start < own.stop:
            columns = slice(own.start + first - start, own.stop + first - start)
            logits[:, columns] = self.head_gemm(hidden_states, weight[own])
        return self.sum_logits(logits).float()
