"""Latent attention with keys and values of every head expanded, over any paged attention.

Heads are expanded a few at a time: what a head reads is larger than the latents that it comes
from, but no head needs another's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.reference.paged_plan import plan_paged
from deepinfer_core.plugin_api.kernel import Problem
from deepinfer_core.staging import to_device

NUM_HEADS = 2
"""Expanded at a time: always as many, since the width of a product may decide how it rounds."""


class ExpandedPlan:
    """Where a step's latents lie once its blocks are copied side by side, request by request.

    Args:
        plan_attention: the `plan` of the attention that reads what is expanded.
    """

    def __init__(
        self, meta: AttentionMeta, plan_attention: Callable[[None, AttentionMeta], object]
    ) -> None:
        device, size = meta.positions.device, meta.block_size
        counts = np.array([-(-bound // size) for bound in meta.seq_len_bounds], dtype=np.int64)
        ends = counts.cumsum()
        starts = ends - counts
        owners = np.repeat(np.arange(len(counts)), counts)
        columns = np.arange(len(owners)) - starts[owners]
        requests, within = to_device(owners, device), to_device(columns, device)
        self.blocks = meta.block_tables[requests, within].long()
        """[N], of the latents' cache."""
        positions = within.unsqueeze(1) * size + torch.arange(size, device=device)
        self.is_unwritten = positions >= meta.seq_lens[requests].unsqueeze(1)
        """[N, s]: slots past the end of their request, which hold anything finite."""
        widest = int(counts.max(initial=1))
        tables = np.minimum(starts[:, None] + np.arange(widest), max(len(owners) - 1, 0))
        self.meta = replace(meta, block_tables=to_device(tables, device).int(), plans={})
        """The batch, with tables of the copied blocks."""
        self.attention = plan_attention(None, self.meta)


def plan_expanded(problem: Problem | None, meta: AttentionMeta) -> ExpandedPlan:
    """The `plan` of `attn.mla_prefill`. Never waits for the device."""
    return ExpandedPlan(meta, plan_paged)


def attend_expanded(
    attend: Callable[..., Tensor | tuple[Tensor, Tensor]],
    multiply: Callable[[Tensor, Tensor], Tensor],
    q: Tensor,
    cache: Tensor,
    weight: Tensor,
    steps: ExpandedPlan,
    scale: float,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attn.mla_prefill` over any `attn.paged` and any product x [N, K], w [M, K] -> [N, M]."""
    rank = weight.shape[2]
    rope_dim = cache.shape[2] - rank
    nope_dim = q.shape[2] - rope_dim
    value_dim = weight.shape[1] - nope_dim
    width = max(q.shape[2], value_dim)  # Paged attention wants keys as wide as values.
    rows = cache.index_select(0, steps.blocks)
    rows.masked_fill_(steps.is_unwritten.unsqueeze(2), 0.0)  # Garbage might grow out of range.
    latents, shared = rows[..., :rank].reshape(-1, rank), rows[..., None, rank:]
    outputs, normalisers = [], []
    for first in range(0, q.shape[1], NUM_HEADS):
        matrices = weight[first : first + NUM_HEADS]
        expanded = multiply(latents, matrices.reshape(-1, rank))
        k_nope, v = expanded.view(*rows.shape[:2], *matrices.shape[:2]).split_with_sizes(
            (nope_dim, value_dim), dim=3
        )
        k = torch.cat((k_nope, shared.expand(-1, -1, len(matrices), -1)), dim=3)
        k, v = (F.pad(x, (0, width - x.shape[3])) for x in (k, v))
        heads = F.pad(q[:, first : first + NUM_HEADS], (0, width - q.shape[2]))
        result = attend(heads, k, v, steps.meta, scale, plan=steps.attention, return_lse=return_lse)
        o, *lse = (result,) if isinstance(result, Tensor) else result
        outputs.append(o[..., :value_dim])
        normalisers.extend(lse)
    o = torch.cat(outputs, dim=1)
    return (o, torch.cat(normalisers, dim=1)) if return_lse else o
