"""The layer of DeepSeek-V3 and V3.2 that predicts a second token.

DeepSeek-AI 2024, arXiv:2412.19437, section 2.2. Stored behind the last layer of the target with a
copy of its embedding and of its head, which are not read: they are the target's.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.decoder_config import DecoderConfig
from deepinfer_core.models.drafters.interface import longest_position
from deepinfer_core.models.drafters.mtp import Mtp
from deepinfer_core.models.layers.decoder_layer import DecoderLayer
from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.rotary import RotaryTable
from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.batch import AttentionBatch

COPIES = ("embed_tokens.weight", "shared_head.head.weight", "rotary_emb.inv_freq")


class SharedHead(nn.Module):
    """The norm before the target's head."""

    def __init__(self, ops: OpTable, size: int, eps: float, *, dtype: str) -> None:
        super().__init__()
        self.norm = RMSNorm(ops, size, eps, dtype=dtype, role="draft.norm", residual=True)


class MtpV3Layer(DecoderLayer):
    """Features and embedding, each behind a norm, as the input of a layer with experts."""

    def __init__(
        self, ops: OpTable, config: DecoderConfig, first_cache: int, *, dtype: str
    ) -> None:
        # One layer by the number of its cache; the keys of its indexer come next.
        layers = frozenset({first_cache})
        moe = None if config.moe is None else replace(config.moe, layers=layers)
        super().__init__(ops, replace(config, num_layers=1, moe=moe), first_cache, dtype=dtype)
        size, eps = config.hidden_size, config.norm_eps
        self.enorm = RMSNorm(ops, size, eps, dtype=dtype, role="draft.embed_norm")
        self.hnorm = RMSNorm(ops, size, eps, dtype=dtype, role="draft.hidden_norm")
        self.eh_proj = Linear(ops, 2 * size, size, dtype=dtype, role="draft.input")
        self.shared_head = SharedHead(ops, size, eps, dtype=dtype)

    def merge(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """[T, C] and [T, C] -> [T, C]."""
        pair = torch.cat((self.enorm(embeddings), self.hnorm(features)), dim=1)
        merged: Tensor = self.eh_proj(pair)
        return merged


class MtpV3(Mtp):
    """Reads hidden states after the last norm, and gives such.

    Args:
        config: of the target.
        first_cache: how many caches the target has.

    Raises:
        ModelLoadError: there is not exactly one such layer.
    """

    def __init__(
        self, config: DecoderConfig, ops: OpTable, *, dtype: str, first_cache: int
    ) -> None:
        if config.num_predict_layers != 1 or config.latent is None:
            raise ModelLoadError(
                f"num_nextn_predict_layers = {config.num_predict_layers}: a drafter has 1 layer"
            )
        super().__init__(config.latent_kvs(dtype), num_drafts=1)
        self.prefix = f"model.layers.{config.num_layers}."
        self.layer = MtpV3Layer(ops, config, first_cache, dtype=dtype)
        self.rotary = RotaryTable(config.rope)

    def stored_name(self, name: str) -> str:
        return self.prefix + name.removeprefix("layer.")

    def is_redundant(self, name: str) -> bool:
        return not name.startswith(self.prefix) or name.endswith(COPIES)

    def advance(self, features: Tensor, embeddings: Tensor, attention: AttentionBatch) -> Tensor:
        positions = attention.groups[0].positions
        cos_sin = self.rotary.cos_sin(longest_position(attention), positions.device)
        x = self.layer.merge(features, embeddings)
        x, residual = self.layer(x, None, positions, cos_sin, attention)
        hidden_states, _ = self.layer.shared_head.norm.add_norm(x, residual)
        return hidden_states

    def head_input(self, features: Tensor) -> Tensor:
        return features
