"""The n-gram memory: what the last few tokens call to mind, gated into the residual streams.

DeepSeek-V4.1, section 2.4. Rows depend on token ids alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.deepseek_v41_config import EngramConfig, V41Config
from deepinfer_core.models.engram_hash import bucket_sizes, multipliers, token_classes
from deepinfer_core.models.interface import Vocabulary
from deepinfer_core.models.layers.collectives import bind_gather
from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.packed import empty_parameter
from deepinfer_core.ops.rows import token_requests
from deepinfer_core.ops.table import OpTable
from deepinfer_core.parallel.mesh import Share
from deepinfer_core.runtime.batch import ForwardBatch
from deepinfer_core.staging import to_device

SCALE_GROUP = 32
"""Numbers of a quantised row that share a scale."""


class EngramTable(nn.Module):
    """Rows of numbers, or of codes and their scales, which stay as they are stored.

    Of every row each rank has some columns, those of whole scales.
    """

    def __init__(self, ops: OpTable, engram: EngramConfig, num_rows: int, *, dtype: str) -> None:
        super().__init__()
        width, group = engram.row_width, SCALE_GROUP if engram.is_quantized else 1
        num_groups = 1 if width % group else width // group
        self.share = ops.mesh.share(num_groups, "groups of columns of the memory").along(1)
        width = self.row_width = self.share.size_of(width)
        stored = "float8_e4m3fn" if engram.is_quantized else dtype
        self.weight = empty_parameter(num_rows, width, dtype=stored)
        self.scale = None
        if engram.is_quantized:
            self.scale = empty_parameter(num_rows, -(-width // SCALE_GROUP), dtype="float8_e8m0fnu")

    def share_of(self, name: str) -> Share:
        """See `packed.Shared`."""
        return self.share


class Engram(nn.Module):
    """Looks up the n-grams that end in each token, and adds a value to each stream.

    Args:
        layer: before which it speaks.
    """

    def __init__(self, ops: OpTable, config: V41Config, layer: int, *, dtype: str) -> None:
        super().__init__()
        engram = config.engram
        assert engram is not None
        index, n, size = engram.layers.index(layer), config.hyper.num_streams, config.hidden_size
        self.eps, self.shape = config.norm_eps, (n + 1, size)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.embed = EngramTable(ops, engram, engram.num_rows[index], dtype=dtype)
        self.gather = bind_gather(ops, dtype=dtype, role="engram.lookup")
        width = engram.num_buckets * engram.row_width
        self.wkv = Linear(ops, width, (n + 1) * size, dtype=dtype, role="engram.kv")
        self.q_weight = empty_parameter(n, size, dtype=dtype)
        self.k_weight = empty_parameter(n, size, dtype=dtype)
        sizes = bucket_sizes(engram)[index]
        if sum(map(sum, sizes)) != engram.num_rows[index]:
            raise ModelLoadError(
                f"engram_num_embeddings[{index}] = {engram.num_rows[index]}, but the buckets that "
                f"begin at engram_vocab_size {engram.first_bucket} have {sum(map(sum, sizes))} rows"
            )
        self.constants = (multipliers(engram, layer), sizes)
        self._on_device: list[Tensor] = []
        self.lookup = ops.bind(
            "engram.lookup",
            dtype=dtype,
            role="engram.lookup",
            features=("quantized",) if engram.is_quantized else (),
            row_width=self.embed.row_width,
        )
        self.gate = ops.bind(
            "engram.gate", dtype=dtype, role="engram.gate", hc_mult=n, hidden_size=size
        )

    def forward(self, streams: Tensor, classes: Tensor, is_image: Tensor | None) -> Tensor:
        """[T, n, D] and what `NgramWindows` gives, [T, N] -> [T, n, D].

        Args:
            is_image: [T] bool, tokens whose streams stay as they are; None = none.
        """
        if not self._on_device:
            self._on_device = [to_device(numbers, streams.device) for numbers in self.constants]
        table = self.embed
        rows = self.lookup(classes, *self._on_device, table.weight, table.scale, self.dtype)
        if self.gather is not None:
            # LAYOUT: [rank][bucket][its columns] -> [bucket][rank][its columns]
            by_rank = self.gather(rows).view(len(rows), table.share.count, -1, table.row_width)
            rows = by_rank.transpose(1, 2).reshape(len(rows), -1)
        keys_and_value = self.wkv(rows).view(-1, *self.shape)
        keys, value = keys_and_value[:, :-1], keys_and_value[:, -1]
        injected: Tensor = self.gate(
            streams, keys, value, self.q_weight, self.k_weight, self.eps, skip=is_image
        )
        return injected


class NgramWindows:
    """Each token's class and those of the tokens before it.

    Args:
        image_token_id: the token that stands for a part of an image; nothing reaches across it.
    """

    def __init__(self, engram: EngramConfig, image_token_id: int | None) -> None:
        self._engram, self._image_token_id = engram, image_token_id
        self._classes: Tensor | None = None

    def read_vocabulary(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """Find the class of every token.

        Raises:
            ModelLoadError: there are more or fewer classes than the hashes are made for.
        """
        tokens = []
        for token_id in range(vocab_size):
            text = vocabulary.decode([token_id], skip_special_tokens=False)
            tokens.append((text, vocabulary.id_to_token(token_id) or text))
        classes = token_classes(tokens)
        if (found := len(set(classes))) != self._engram.num_classes:
            raise ModelLoadError(
                f"the tokenizer's {vocab_size} tokens are of {found} classes, but "
                f"engram_compressed_vocab_size is {self._engram.num_classes}; "
                "is it the model's own tokenizer?"
            )
        self.set_classes(classes)

    def set_classes(self, classes: Sequence[int]) -> None:
        """Give the class of every token by id."""
        self._classes = torch.tensor(classes)

    def __call__(self, batch: ForwardBatch) -> Tensor:
        """[T, N] int64, the token's own first; after the start or an image the padding class."""
        if self._classes is None:
            raise RuntimeError("the classes of tokens were never set")
        self._classes = self._classes.to(batch.positions.device)
        ids = self._windows(batch)
        blocks = ids < 0
        if self._image_token_id is not None:
            blocks |= ids == self._image_token_id
        classes = self._classes[ids.clamp(min=0)]
        return classes.masked_fill_(blocks.cumsum(dim=1) > 0, self._engram.pad_class)

    def _windows(self, batch: ForwardBatch) -> Tensor:
        """[T, N] int64 token ids, negative before the start."""
        meta, history = batch.attention.groups[0], batch.history
        assert history is not None  # the model has a `history_len`
        num_before = history.shape[1]
        device = batch.positions.device
        # Every chunk behind its history, in one row.
        places = torch.arange(len(batch.input_ids), device=device)
        places = places + (token_requests(meta) + 1) * num_before
        ids = batch.input_ids.new_empty(len(batch.input_ids) + history.numel())
        ids[places] = batch.input_ids
        before = meta.cu_seqlens_q[:-1].long().unsqueeze(1) + torch.arange(
            num_before, device=device
        )
        before = before + torch.arange(len(history), device=device).unsqueeze(1) * num_before
        ids[before] = history
        back = torch.arange(num_before + 1, device=device)
        return ids[places.unsqueeze(1) - back].long()
