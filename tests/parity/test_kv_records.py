"""Caches of records: the model computes with rounded rows, and every feature changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError
from deepinfer_core.llm import LLM
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.layers.row_cache import RowCache
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.records import Record
from deepinfer_core.ops.reference.records import decode, encode, turn
from deepinfer_core.ops.table import reference_table
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.text.loading import load_tokenizer
from deepinfer_core.verify.report import verify_model
from deepinfer_core.weights.checkpoint import open_checkpoint

FORMATS = [
    ("deepseek_v32", "656+132"),
    ("deepseek_v32", "auto+132"),
    ("deepseek_v4", "584+132"),
    ("deepseek_v4", "584+68"),
    ("deepseek_v41", "288+68"),
    ("deepseek_v41", "584+132"),
]
IDS = torch.randint(3, 275, (270,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("records")
    return {
        family: write_tiny_checkpoint(root / family, family)
        for family in ("deepseek_v32", "deepseek_v4", "deepseek_v41")
    }


def load(directory: Path, kv_format: str, dtype: str = "float32") -> CausalModel:
    checkpoint = open_checkpoint(directory)
    ops = reference_table(batch_invariant=True)
    model = build_model(checkpoint.info, ops, dtype=dtype, kv_format=kv_format)
    load_weights(model, checkpoint, device="cpu", vocabulary=load_tokenizer(directory))
    return model


def row_caches(model: CausalModel) -> list[RowCache]:
    """In the order of their layers."""
    found = [value for module in model.modules() for value in vars(module).values()]
    return [value for value in found if isinstance(value, RowCache)]


def round_rows(cache: RowCache, record: Record) -> None:
    """Let a cache of plain rows hold what a record would stand for."""

    def rounded(rows: torch.Tensor) -> torch.Tensor:
        return decode(encode(rows.reshape(-1, record.width), record), record)

    cache.pack = rounded  # type: ignore[method-assign]
    cache.round = lambda x: rounded(x).view(x.shape)  # type: ignore[method-assign]


@pytest.mark.parametrize(("family", "kv_format"), FORMATS)
def test_the_model_computes_with_rounded_rows(
    directories: dict[str, Path], family: str, kv_format: str
) -> None:
    model, plain = load(directories[family], kv_format), load(directories[family], "auto")
    expected = {name for name in kv_format.split("+") if name != "auto"}
    if "288" in expected:
        expected.add("528")  # of windows
    held = {kv.record.name for kv in model.layer_kv() if kv.record is not None}
    assert held == expected
    before = HandRunner(plain, num_blocks=64).feed({0: IDS})[0]
    for with_records, without in zip(row_caches(model), row_caches(plain), strict=True):
        if with_records.record is not None:
            round_rows(without, with_records.record)
    logits = HandRunner(model, num_blocks=64).feed({0: IDS})[0]
    assert torch.equal(logits, HandRunner(plain, num_blocks=64).feed({0: IDS})[0])
    assert not torch.equal(logits, before)


@pytest.mark.parametrize(("family", "kv_format"), FORMATS)
def test_queries_of_the_indexer_are_rounded_too(
    directories: dict[str, Path], family: str, kv_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(directories[family], kv_format)
    logits = HandRunner(model, num_blocks=64).feed({0: IDS})[0]
    for cache in row_caches(model):
        if cache.record is not None:
            only_turned = turn if cache.record.is_turned else (lambda x: x)
            monkeypatch.setattr(cache, "round", only_turned)
    assert not torch.equal(HandRunner(model, num_blocks=64).feed({0: IDS})[0], logits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "kv_format"), FORMATS)
def test_chunks_and_batches_give_the_same_bits(
    directories: dict[str, Path], family: str, kv_format: str, dtype: str
) -> None:
    model = load(directories[family], kv_format, dtype)
    ids = IDS[:140]
    alone = HandRunner(model, num_blocks=32).feed({0: ids})[0]
    chunked = HandRunner(model, num_blocks=96)
    parts = []
    for first, last in ((0, 5), (5, 21), (21, 22), (22, 130), (130, 140)):
        step = chunked.feed({1: IDS[first + 9 : last + 10], 0: ids[first:last]})
        parts.append(step[0])
    assert torch.equal(torch.cat(parts), alone)


def test_random_combinations_equal_the_plain_run_bit_by_bit(directories: dict[str, Path]) -> None:
    config = EngineConfig.from_flat(
        str(directories["deepseek_v32"]), dtype="float32", batch_invariant=True, kv_format="656+132"
    )
    host = PluginHost(load_entry_points=False)
    report = verify_model(config, host=host, max_tokens=8, num_points=1, seed=10)
    assert report.passed, "\n".join(map(report.reproduction, report.results))
    assert sum(result.num_hit_tokens for result in report.results) > 0


def generate(directory: Path, prompts: list[list[int]], **fields: Any) -> list[list[int]]:
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=6, ignore_eos=True)
    host = PluginHost(load_entry_points=False)
    with LLM(str(directory), host=host, batch_invariant=True, kv_format="584+68", **fields) as llm:
        outputs = [llm.generate([prompt], params)[0] for prompt in prompts]
        assert (llm.engine.metrics()["num_hit_tokens"] > 0) == bool(fields["prefix_caching"])
    return [sample.token_ids for output in outputs for sample in output.outputs]


def test_chunks_and_prefix_hits_give_the_same_tokens(directories: dict[str, Path]) -> None:
    prompts = [IDS[:140], IDS[:133], IDS[:260]]
    plain = generate(directories["deepseek_v4"], prompts, prefix_caching=False, overlap=False)
    other = generate(
        directories["deepseek_v4"], prompts, prefix_caching=True, max_num_batched_tokens=48
    )
    assert other == plain


def test_what_a_model_cannot_hold_is_said(directories: dict[str, Path]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(directories["deepseek_v4"], "656+132")
    message = str(caught.value)
    assert "cache.kv_format" in message
    assert "'656+132'" in message
    assert "auto, 584+132, 584+68" in message
