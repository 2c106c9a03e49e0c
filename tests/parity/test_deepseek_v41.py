"""DeepSeek-V4.1 against a dense computation that shares no code with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.engram_hash import bucket_sizes, multipliers, token_classes
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.records import make_record
from deepinfer_core.ops.reference.records import decode, encode
from deepinfer_core.ops.table import reference_table
from deepinfer_core.runtime.batch import ForwardBatch, ImageRows
from deepinfer_core.testing.dense_v41 import DenseV41, Rounding
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.text.loading import load_tokenizer
from deepinfer_core.weights.checkpoint import open_checkpoint
from safetensors.torch import load_file
from torch import Tensor

TOLERANCE = 2e-5
"""Of the largest logit."""
MODELS: dict[str, dict[str, Any]] = {
    "rows of two and of one": {},
    "nothing but rows of two": {
        "compress_ratios": [2, 0, 2, 2, 2, 2, 2, 0],
        "kv_source_layer_ids": [0, 3],
        "index_source_layer_ids": [0, 3, 5],
        "candidate_source_layer_id": -1,
    },
    "no memory, a hot router": {"engram_layer_ids": [], "gate_temp": 0.7},
}
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 16, 17, 31, 32, 33, 150)
"""Around a pair, the window of 8, choices of 4 rows, blocks of 4 and the limit of 3 of them."""


def tokens(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, 275, (length,), generator=generator).tolist()


def clear_tokens(dense: DenseV41, length: int, seed: int) -> list[int]:
    """A prompt in which rounding decides nothing."""
    for attempt in range(20):
        ids = tokens(length, seed + 100 * attempt)
        dense.logits(ids)
        if dense.num_clear == length:
            return ids
    raise AssertionError("no prompt is clear")


@pytest.fixture(scope="module", params=MODELS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[CausalModel, DenseV41]:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(directory, "deepseek_v41", **MODELS[request.param])
    return load_ours(directory), load_dense(directory)


def load_ours(directory: Path, kv_format: str = "auto") -> CausalModel:
    checkpoint, ops = open_checkpoint(directory), reference_table()
    model = build_model(checkpoint.info, ops, dtype="float32", kv_format=kv_format)
    load_weights(model, checkpoint, device="cpu", vocabulary=load_tokenizer(directory))
    return model


def load_dense(
    directory: Path, dtype: torch.dtype = torch.float32, rounding: Rounding | None = None
) -> DenseV41:
    info = open_checkpoint(directory).info
    weights = load_file(directory / "model.safetensors")
    engram, tables = info.config.engram, []
    if engram is not None:
        sizes = bucket_sizes(engram)
        tables = [(multipliers(engram, layer), sizes[i]) for i, layer in enumerate(engram.layers)]
    tokenizer = load_tokenizer(directory)
    texts = [tokenizer.decode([i], skip_special_tokens=False) for i in range(320)]
    entries = [tokenizer.id_to_token(i) or texts[i] for i in range(320)]
    return DenseV41(
        info.raw_config["text_config"],
        {name: tensor.to(dtype) for name, tensor in weights.items()},
        classes=token_classes(list(zip(texts, entries, strict=True))),
        tables=tables,
        rounding=rounding,
    )


def assert_close(found: Tensor, dense: DenseV41, ids: list[int]) -> int:
    """Compare as far as rounding decides nothing; gives how far that is."""
    expected, count = dense.logits(ids).double(), dense.num_clear
    bound = TOLERANCE * expected.abs().max().item()
    torch.testing.assert_close(found[:count].double(), expected[:count], atol=bound, rtol=0)
    return count


def test_prompts_of_every_kind_of_length_in_one_batch(pair: tuple[Any, Any]) -> None:
    ours, dense = pair
    prompts = {length: tokens(length) for length in LENGTHS}
    logits = HandRunner(ours, num_blocks=128).feed(prompts)
    compared = sum(assert_close(logits[length], dense, ids) for length, ids in prompts.items())
    assert compared > 0.8 * sum(LENGTHS)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 127])
def test_chunks(pair: tuple[Any, Any], size: int) -> None:
    ours, dense = pair
    ids = clear_tokens(dense, {1: 60, 127: 200}.get(size, 100), size)
    runner = HandRunner(ours)
    chunks = [runner.feed({0: ids[at : at + size]})[0] for at in range(0, len(ids), size)]
    assert_close(torch.cat(chunks), dense, ids)


def test_a_drafted_token_that_is_taken_back_leaves_no_trace(pair: tuple[Any, Any]) -> None:
    """Tokens that had closed a group, filled a block and moved the memory are computed anew."""
    ours, dense = pair
    ids, wrong = clear_tokens(dense, 90, 3), tokens(90, seed=4)
    runner, rows = HandRunner(ours), []
    for at in range(0, 90, 3):
        runner.feed({0: ids[at : at + 1] + wrong[at : at + 4]})
        runner.lengths[0] = at
        rows.append(runner.feed({0: ids[at : at + 3]})[0])
    assert_close(torch.cat(rows), dense, ids)


def test_float32_stays_near_float64(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "deepseek_v41")
    ids = tokens(400, seed=9)
    found = HandRunner(load_ours(directory), num_blocks=64).feed({0: ids})[0]
    assert assert_close(found, load_dense(directory, torch.float64), ids) > 100


@pytest.mark.parametrize(
    ("kv_format", "window", "rows", "keys"),
    [("288+68", "528", "288", "68"), ("584+132", "584", "584", "132")],
)
def test_rounded_rows(tmp_path: Path, kv_format: str, window: str, rows: str, keys: str) -> None:
    """Caches of records give what rows give that were rounded alike, and so are index queries.

    As long as no number lies so near the middle of two codes that its own rounding decides.
    """
    directory = write_tiny_checkpoint(tmp_path, "deepseek_v41")
    rounding = Rounding(
        window=round_by(window, 64), rows=round_by(rows, 64), keys=round_by(keys, 32)
    )
    dense, plain = load_dense(directory, rounding=rounding), load_dense(directory)
    prompts = {seed: tokens(40, seed) for seed in range(8)}
    found = HandRunner(load_ours(directory, kv_format)).feed(prompts)

    def count_equal(reference: DenseV41) -> int:
        expected = {seed: reference.logits(ids) for seed, ids in prompts.items()}
        errors = torch.cat([(found[seed] - expected[seed]).abs().amax(1) for seed in prompts])
        bound = TOLERANCE * max(logits.abs().max() for logits in expected.values())
        return int((errors < bound).sum())

    assert count_equal(dense) > 200
    assert count_equal(plain) < 20


def round_by(name: str, width: int) -> Callable[[Tensor], Tensor]:
    record = make_record(name, width, 16)
    return lambda x: decode(encode(x.reshape(-1, width), record), record).view(x.shape)


def test_the_memory_sees_only_what_tokens_look_like(tmp_path: Path) -> None:
    """Two tokens of one class differ in their embeddings alone."""
    ours = load_ours(write_tiny_checkpoint(tmp_path, "deepseek_v41"))
    tokenizer = load_tokenizer(tmp_path)
    upper, lower = tokenizer.token_to_id("A"), tokenizer.token_to_id("a")
    ours.embed.weight[upper] = ours.embed.weight[lower]
    runner = HandRunner(ours)
    logits = runner.feed({0: [10, upper, 20, 30], 1: [10, lower, 20, 30]})
    assert torch.equal(logits[0], logits[1])
    other = runner.feed({2: [10, tokenizer.token_to_id("b"), 20, 30]})[2]
    assert not torch.allclose(other[1:], logits[0][1:], atol=1e-2)


IMAGE = 319
SPANS = ((0, 2), (9, 10), (12, 17), (40, 53))
"""At the start, a single token within n-grams, across pairs, longer than the window."""


@pytest.mark.parametrize("size", [2, 3, 60])
def test_images_in_the_prompt(tmp_path: Path, size: int) -> None:
    """Rows in place of embeddings, the router's other bias, a memory that looks away."""
    directory = write_tiny_checkpoint(tmp_path, "deepseek_v41")
    ours, dense = load_ours(directory), load_dense(directory)
    generator = torch.Generator().manual_seed(3)
    images = {
        position: torch.randn(ours.config.hidden_size, generator=generator)
        for start, end in SPANS
        for position in range(start, end)
    }
    ids = [IMAGE if at in images else token for at, token in enumerate(tokens(60, seed=3))]
    runner, chunks = HandRunner(ours), []
    for at in range(0, len(ids), size):
        batch = with_images(runner.next_batch({0: ids[at : at + size]}), images)
        chunks.append(ours.compute_logits(ours.forward(batch)))
    expected, count = dense.logits(ids, images), dense.num_clear
    assert count > 50
    bound = TOLERANCE * expected.abs().max().item()
    torch.testing.assert_close(torch.cat(chunks)[:count], expected[:count], atol=bound, rtol=0)


def with_images(batch: ForwardBatch, images: dict[int, Tensor]) -> ForwardBatch:
    places = [i for i, at in enumerate(batch.positions.tolist()) if at in images]
    if not places:
        return batch
    rows = torch.tensor(places)
    is_image = torch.zeros(len(batch.positions), dtype=torch.bool)
    is_image[rows] = True
    embeddings = torch.stack([images[at] for at in batch.positions[rows].tolist()])
    return replace(batch, images=ImageRows(is_image, embeddings, rows))
