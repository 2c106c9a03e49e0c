"""Run a model by hand: paged caches and batches without a scheduler or an engine.

For tests and for looking at a model. Blocks are handed out in shuffled order, unwritten slots hold
garbage, and blocks that leave a window are replaced by the null block, as in the real engine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import lcm

import torch
from torch import Tensor

from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.models.interface import Model, history_len_of
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.runtime.batch import AttentionBatch, ForwardBatch, LayerCache
from deepinfer_core.scheduling.plan import NO_TOKEN_ID

GARBAGE, GARBAGE_BYTE = 1e4, 0x55


class HandRunner:
    """Sequences by a key of the caller's choice, each growing by the chunks it is fed.

    Args:
        num_blocks: of every layout group; one of them is the null block.
        extra_kv: caches behind those of the model, such as a drafter's.
        num_lookahead_tokens: how far block tables reach beyond the tokens that were fed.
    """

    def __init__(
        self,
        model: Model,
        *,
        block_size: int = 16,
        num_blocks: int = 64,
        extra_kv: Sequence[LayerKV] = (),
        num_lookahead_tokens: int = 0,
    ) -> None:
        self.model = model
        self.num_lookahead_tokens = num_lookahead_tokens
        layers = [*model.layer_kv(), *extra_kv]
        self.windows = list(dict.fromkeys(layer.window_size for layer in layers))
        self.cache_groups = [self.windows.index(layer.window_size) for layer in layers]
        # A block holds whole rows of every cache.
        self.block_size = lcm(block_size, *(layer.tokens_per_row for layer in layers))
        self.caches = [
            _empty_cache(layer, num_blocks, self.block_size, model.dtype) for layer in layers
        ]
        order = list(range(1, num_blocks))
        random.Random(0).shuffle(order)
        self.free_blocks = [list(order) for _ in self.windows]
        self.block_tables: list[dict[int, list[int]]] = [{} for _ in self.windows]
        self.lengths: dict[int, int] = {}
        self.token_ids: dict[int, list[int]] = {}
        """Of each sequence; beyond its length they count no more."""

    def feed(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        """Compute the next tokens of several sequences in one step.

        Args:
            chunks: sequence -> its next token ids, at least one.

        Returns:
            sequence -> logits [number of its tokens, V] float32.
        """
        batch = self.next_batch(chunks)
        logits = self.model.compute_logits(self.model.forward(batch))
        query_lens = [len(ids) for ids in chunks.values()]
        return dict(zip(chunks, torch.split(logits, query_lens), strict=True))

    def next_batch(self, chunks: Mapping[int, Sequence[int]]) -> ForwardBatch:
        """What `feed` gives the model; the sequences count as grown."""
        query_lens = [len(ids) for ids in chunks.values()]
        starts = [self.lengths.get(key, 0) for key in chunks]
        seq_lens = [start + count for start, count in zip(starts, query_lens, strict=True)]
        history = [self._history(key, start) for key, start in zip(chunks, starts, strict=True)]
        for key, start, ids in zip(chunks, starts, chunks.values(), strict=True):
            self.lengths[key] = start + len(ids)
            self.token_ids.setdefault(key, [])[start:] = ids
        positions = torch.cat([torch.arange(s, e) for s, e in zip(starts, seq_lens, strict=True)])
        groups = [
            self._group_meta(group, list(chunks), starts, seq_lens, positions)
            for group in range(len(self.windows))
        ]
        input_ids = torch.tensor([i for ids in chunks.values() for i in ids], dtype=torch.int32)
        attention = AttentionBatch(groups, self.cache_groups, self.caches)
        return ForwardBatch(
            input_ids, positions, attention, history=torch.tensor(history, dtype=torch.int32)
        )

    def greedy(self, prompt: Sequence[int], num_tokens: int, *, key: int = 0) -> list[int]:
        """Feed a prompt as one chunk, then its most likely continuation token by token."""
        logits = self.feed({key: prompt})[key]
        output = [int(logits[-1].argmax())]
        while len(output) < num_tokens:
            logits = self.feed({key: output[-1:]})[key]
            output.append(int(logits[-1].argmax()))
        return output

    def _history(self, key: int, start: int) -> list[int]:
        length = history_len_of(self.model)
        known = self.token_ids.get(key, [])[max(0, start - length) : start]
        return [NO_TOKEN_ID] * (length - len(known)) + known

    def _group_meta(
        self,
        group: int,
        keys: Sequence[int],
        starts: Sequence[int],
        seq_lens: Sequence[int],
        positions: Tensor,
    ) -> AttentionMeta:
        size, window = self.block_size, self.windows[group]
        tables = []
        for key, start, length in zip(keys, starts, seq_lens, strict=True):
            table = self.block_tables[group].setdefault(key, [])
            while len(table) * size < length + self.num_lookahead_tokens:
                table.append(self.free_blocks[group].pop())
            if window is not None:
                for gone in range(max(0, start + 1 - window) // size):
                    table[gone] = 0
            tables.append(torch.tensor(table, dtype=torch.int32))
        block_tables = torch.nn.utils.rnn.pad_sequence(tables, batch_first=True)
        query_lens = [end - start for start, end in zip(starts, seq_lens, strict=True)]
        owner = torch.repeat_interleave(torch.tensor(query_lens))
        blocks = block_tables[owner, positions // size]
        return AttentionMeta(
            cu_seqlens_q=torch.tensor([0, *query_lens]).cumsum(0).int(),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            block_tables=block_tables,
            slot_mapping=(blocks * size + positions % size).int(),
            positions=positions,
            block_size=size,
            query_lens=query_lens,
            seq_len_bounds=list(seq_lens),
        )


def _empty_cache(
    layer: LayerKV, num_blocks: int, block_size: int, dtype: torch.dtype
) -> LayerCache:
    dtype = dtype if layer.dtype is None else getattr(torch, layer.dtype)
    garbage = GARBAGE if dtype.is_floating_point else GARBAGE_BYTE
    num_rows = block_size // layer.tokens_per_row
    shape = (num_blocks, num_rows, layer.num_kv_heads, layer.head_dim)
    planes = [torch.full(shape, garbage, dtype=dtype) for _ in range(layer.num_planes)]
    return LayerCache(k_cache=planes[0], v_cache=planes[-1])
