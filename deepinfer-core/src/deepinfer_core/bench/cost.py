"""Bytes that a step must read: the weights, once for all its tokens, and each request's KV.

A lower bound: activations and what is written are left out, since in decoding they are small.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.layers.embedding import VocabMatrix
from deepinfer_core.models.layers.moe import SparseMoE


def weight_bytes(model: nn.Module, num_tokens: int) -> int:
    """Bytes of parameters that a step over so many tokens reads.

    Of an embedding that is not also the output head only the tokens' rows count, of routed
    experts as many as the tokens can reach.
    """
    total = sum(parameter.nbytes for parameter in model.parameters())
    vocab_matrices = [m.weight for m in model.modules() if isinstance(m, VocabMatrix)]
    if len(vocab_matrices) > 1:  # the first one embeds, the last one is the head
        embedding = vocab_matrices[0]
        total -= max(0, embedding.shape[0] - num_tokens) * embedding[0].nbytes
    for module in model.modules():
        if isinstance(module, SparseMoE):
            experts = list(module.experts.parameters())
            num_experts = experts[0].shape[0]
            num_idle = max(0, num_experts - num_tokens * module.top_k)
            total -= sum(weight[0].nbytes for weight in experts) * num_idle
    return total


def kv_bytes(layers: Sequence[LayerKV], seq_lens: Sequence[int]) -> float:
    """Bytes of keys and values that one decode step reads for requests of these lengths."""
    return sum(
        layer.bytes_per_token * min(length, layer.window_size or length)
        for layer in layers
        for length in seq_lens
    )
