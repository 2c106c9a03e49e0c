"""DeepSeek-V4.1: what its configuration means, and that what layers share is there once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from deepinfer_core.errors import ConfigError, ModelLoadError
from deepinfer_core.models.deepseek_v4 import DeepseekV4
from deepinfer_core.models.deepseek_v41 import DeepseekV41
from deepinfer_core.models.deepseek_v41_config import plan_shared_caches
from deepinfer_core.models.layers.engram import NgramWindows
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.table import reference_table
from deepinfer_core.runtime.batch import AttentionBatch, ForwardBatch
from deepinfer_core.testing.tiny import tiny_config


def read(**changes: Any) -> Any:
    return DeepseekV41.read_config(RawConfig(tiny_config("deepseek_v41", **changes), "config.json"))


def test_layers_take_the_rows_and_choices_of_the_last_source_before_them() -> None:
    layer_kvs, layers = plan_shared_caches(read(), "bfloat16")
    assert [read().kv_source(layer) for layer in range(8)] == [None, 1, 1, 3, 4, 4, 4, 4]
    sources = [caches.source for caches in layers]
    assert sources[0] is None
    assert sources[1] == sources[2] and sources[4] == sources[5] == sources[6] == sources[7]
    assert len({sources[1], sources[3], sources[4]}) == 3
    assert [source.raw is None for source in sources if source] == [False] * 3 + [True] * 4
    rows = [kind for kind in layer_kvs if kind.kind == "full"]
    assert [kind.tokens_per_row for kind in rows] == [2, 2, 2, 2, 1, 1]
    windows = [kind for kind in layer_kvs if kind.window_size == 8]
    assert len(windows) == 8, "each layer has a window of its own"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"compress_ratios": [0, 4, 2, 2, 1, 1, 1, 1]}, ["compress_ratios[1]", "0 (window only)"]),
        ({"compress_ratios": [0, 2, 2]}, ["compress_ratios has 3 entries", "num_hidden_layers"]),
        ({"compress_ratios": [0, 2, 1, 2, 1, 1, 1, 1]}, ["compress_ratios[2]", "source 1 of 2"]),
        ({"compress_ratios": [1, 2, 2, 2, 1, 1, 1, 1]}, ["compress_ratios[0]", "no source"]),
        ({"kv_source_layer_ids": [1, 3, 9]}, ["kv_source_layer_ids", "below 8"]),
        ({"kv_source_layer_ids": [3, 1, 4]}, ["kv_source_layer_ids", "ascending"]),
        ({"index_source_layer_ids": [1, 4]}, ["index_source_layer_ids", "with 3"]),
        ({"candidate_source_layer_id": 5}, ["candidate_source_layer_id", "[1, 3, 4, 6]"]),
        ({"candidate_source_layer_id": 3}, ["candidate_source_layer_id", "at or behind 4"]),
        ({"index_source_layer_ids": [0, 1, 3, 4]}, ["compress_ratios[0]", "of a source"]),
        ({"num_hash_layers": 2}, ["num_hash_layers", "DeepSeek-V4, not of V4.1"]),
        ({"engram_num_embeddings": [384]}, ["engram_num_embeddings", "[0, 3]"]),
        ({"engram_pad_token_id": 243}, ["engram_pad_token_id", "below 243"]),
        ({"engram_max_ngram_size": 1}, ["engram_max_ngram_size", "at least 2"]),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(ModelLoadError) as caught:
        read(**changes)
    assert all(part in str(caught.value) for part in told), str(caught.value)


def test_late_layers_that_are_replayed_have_no_memory() -> None:
    with pytest.raises(ConfigError, match=r"before layers \[5\], but behind layer 4") as caught:
        replace(read(engram_layer_ids=[0, 5]), decoder_replay=True)
    assert caught.value.field == "cache.decoder_replay"
    replace(read(engram_layer_ids=[0, 4]), decoder_replay=True)


def test_a_ratio_of_one_means_nothing_to_v4() -> None:
    config = tiny_config("deepseek_v4", compress_ratios=[0, 1, 4, 128, 4])
    with pytest.raises(ModelLoadError, match=r"compress_ratios\[1\] = 1 .* 4 \(compressed sparse"):
        DeepseekV4.read_config(RawConfig(config, "config.json"))


def test_the_model_is_in_a_section_of_its_own() -> None:
    config = tiny_config("deepseek_v41")
    with pytest.raises(ModelLoadError, match="text_config is missing"):
        DeepseekV41.read_config(RawConfig({**config, "text_config": None}, "config.json"))
    flat = {**config["text_config"], "kv_source_layer_ids": [2]}
    with pytest.raises(ModelLoadError, match="kv_source_layer_ids is a field"):
        DeepseekV4.read_config(RawConfig(flat, "config.json"))


def test_a_table_of_another_size_is_refused() -> None:
    with torch.device("meta"), pytest.raises(ModelLoadError, match="engram_num_embeddings"):
        DeepseekV41(read(engram_num_embeddings=[384, 553]), reference_table(), dtype="float32")


def test_another_vocabulary_is_refused() -> None:
    class Letters:
        def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
            return chr(97 + next(iter(token_ids)) % 26)

        def id_to_token(self, token_id: int) -> str | None:
            return None

    with torch.device("meta"):
        model = DeepseekV41(read(), reference_table(), dtype="float32")
    with pytest.raises(ModelLoadError, match="26 classes, but engram_compressed_vocab_size is 243"):
        model.read_vocabulary(Letters())


@pytest.mark.parametrize("image", [9, 0])
def test_nothing_is_remembered_across_an_image_or_the_start(image: int) -> None:
    engram = read().engram
    assert engram is not None
    windows = NgramWindows(engram, image_token_id=image)
    windows.set_classes([10 * token for token in range(12)])
    batch = two_requests([[5, 6, image, 7], [8, 3]], history=[[1, 2, 4], [-2, image, 11]])
    pad = engram.pad_class
    assert windows(batch).tolist() == [
        [50, 40, 20, 10],
        [60, 50, 40, 20],
        [pad, pad, pad, pad],
        [70, pad, pad, pad],
        [80, 110, pad, pad],
        [30, 80, 110, pad],
    ]


def two_requests(chunks: list[list[int]], history: list[list[int]]) -> ForwardBatch:
    lens = [len(chunk) for chunk in chunks]
    positions = torch.cat([torch.arange(3, 3 + count) for count in lens])
    meta = AttentionMeta(
        cu_seqlens_q=torch.tensor([0, *lens]).cumsum(0).int(),
        seq_lens=torch.tensor([3 + count for count in lens], dtype=torch.int32),
        block_tables=torch.zeros(len(lens), 1, dtype=torch.int32),
        slot_mapping=torch.zeros(sum(lens), dtype=torch.int32),
        positions=positions,
        block_size=16,
        query_lens=lens,
        seq_len_bounds=[3 + count for count in lens],
    )
    return ForwardBatch(
        torch.tensor([token for chunk in chunks for token in chunk], dtype=torch.int32),
        positions,
        AttentionBatch([meta], [], []),
        history=torch.tensor(history, dtype=torch.int32),
    )
