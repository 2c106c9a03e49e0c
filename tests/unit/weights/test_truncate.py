"""A truncated checkpoint holds the very bytes, loads strictly, and computes what its layers did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from deepinfer_core.errors import ConfigError, ModelLoadError
from deepinfer_core.models.drafters.build import build_drafter
from deepinfer_core.models.interface import ReadsVocabulary
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.models.synthetic import write_synthetic_checkpoint
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import TINY_DRAFTERS, TINY_FAMILIES, write_tiny_checkpoint
from deepinfer_core.text.hf_tokenizer import load_hf_tokenizer
from deepinfer_core.weights import truncate
from deepinfer_core.weights.checkpoint import open_checkpoint
from deepinfer_core.weights.cut_config import plan_cut, text_fields
from deepinfer_core.weights.safetensors_reader import SafetensorsSource
from deepinfer_core.weights.truncate import (
    Written,
    reassign_experts,
    truncate_checkpoint,
)
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

PROMPT = list(range(3, 40))


def cut(source: Path, destination: Path, **options: Any) -> Written:
    return truncate_checkpoint(source, destination, partial(plan_cut, **options))


def load(directory: Path) -> Any:
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, reference_table(), dtype="float32")
    load_weights(model, checkpoint, device="cpu")
    if isinstance(model, ReadsVocabulary):
        model.read_vocabulary(load_hf_tokenizer(directory))
    return model


def stored(directory: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in directory.glob("*.safetensors"):
        tensors.update(load_file(path))
    return tensors


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def output_of(model: Any, layer: int) -> list[Tensor]:
    """What a layer gives for the prompt."""
    layers: nn.ModuleList = model.layers if hasattr(model, "layers") else model.model.layers
    outputs: list[Tensor] = []

    def keep(module: nn.Module, arguments: Any, output: Any) -> None:
        outputs.extend(output if isinstance(output, tuple) else [output])

    handle = layers[layer].register_forward_hook(keep)
    HandRunner(model).feed({0: PROMPT})
    handle.remove()
    return outputs


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
@pytest.mark.parametrize("quantize", [False, True], ids=["numbers", "codes"])
def test_the_first_layers_compute_what_they_did(
    family: str, quantize: bool, tmp_path: Path
) -> None:
    full = write_tiny_checkpoint(tmp_path / "full", family, quantize=quantize, num_shards=2)
    written = cut(full, tmp_path / "cut", num_layers=2)
    assert written.num_layers == 2
    expected = output_of(load(full), 1)
    for a, b in zip(output_of(load(tmp_path / "cut"), 1), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "deepseek_v4", "deepseek_v41"])
def test_codes_stay_the_codes_they_were(family: str, tmp_path: Path) -> None:
    full = write_tiny_checkpoint(tmp_path / "full", family, quantize=True)
    cut(full, tmp_path / "cut", num_layers=2, num_experts=3)
    before, after = stored(full), stored(tmp_path / "cut")
    assert any(tensor.dtype == torch.float8_e4m3fn for tensor in after.values())
    experts = {name for name in after if ".experts." in name}
    assert experts
    assert not any(f".experts.{expert}." in name for name in after for expert in range(3, 8))
    num_routers = 0
    for name, tensor in after.items():
        if name.endswith("tid2eid"):
            assert int(tensor.max()) < 3
            continue
        kept = before[name]
        if ".gate." in name:
            num_routers += 1
            kept = kept[:3]
        assert torch.equal(as_bytes(tensor), as_bytes(kept)), name
    assert num_routers
    logits = HandRunner(load(tmp_path / "cut")).feed({0: PROMPT})[0]
    assert logits.isfinite().all()


def test_memories_of_n_grams_may_go(tmp_path: Path) -> None:
    full = write_tiny_checkpoint(tmp_path / "full", "deepseek_v41", quantize=True)
    cut(full, tmp_path / "cut", num_layers=4, keeps_engrams=False)
    assert any(".engram." in name for name in stored(full))
    assert not any(".engram." in name for name in stored(tmp_path / "cut"))
    logits = HandRunner(load(tmp_path / "cut")).feed({0: PROMPT})[0]
    assert logits.isfinite().all()


@pytest.mark.parametrize(("width", "count"), [(2, 1), (2, 2), (2, 3), (6, 8), (6, 7), (6, 4)])
def test_tokens_keep_different_experts(width: int, count: int) -> None:
    ids = torch.rand(500, 8).argsort(dim=1)[:, :width]
    kept = reassign_experts(ids, count)
    assert kept.shape == (500, min(width, count))
    assert kept.dtype == ids.dtype
    assert 0 <= int(kept.min()) <= int(kept.max()) < count
    assert all(len(set(row)) == len(row) for row in kept.tolist())
    assert torch.equal(kept[:, 0], ids[:, 0] % count)
    assert torch.equal(reassign_experts(ids, 8), ids)


@pytest.mark.parametrize("name", sorted(TINY_DRAFTERS))
@pytest.mark.parametrize("is_random", [False, True], ids=["copied", "random"])
def test_layers_that_predict_go_or_stay(name: str, is_random: bool, tmp_path: Path) -> None:
    family, overrides = TINY_DRAFTERS[name]
    full = write_tiny_checkpoint(tmp_path / "full", family, quantize=True, **overrides)
    num_layers = text_fields(json.loads((full / "config.json").read_text()))["num_hidden_layers"]
    is_v3 = "v3" in name  # whose drafter is a layer behind the last
    old = f"model.layers.{num_layers}." if is_v3 else "mtp."
    new = f"model.layers.{num_layers - 1}." if is_v3 else "mtp."
    write = write_synthetic_checkpoint if is_random else truncate_checkpoint
    make_cut = partial(plan_cut, num_layers=num_layers - 1, num_experts=4)
    write(full, tmp_path / "without", make_cut)
    assert build_both(tmp_path / "without")[1] is None
    assert not any(name.startswith(new) for name in stored(tmp_path / "without"))
    write(full, tmp_path / "with", partial(make_cut, keeps_predictors=True))
    for part in build_both(tmp_path / "with"):
        load_weights(part, open_checkpoint(tmp_path / "with"), device="cpu")
    before, after = stored(full), stored(tmp_path / "with")
    own = [name.removeprefix(new) for name in after if name.startswith(new)]
    assert len(own) > 20
    for rest in own if not is_random else []:
        if ".gate." not in rest:
            assert torch.equal(as_bytes(after[new + rest]), as_bytes(before[old + rest])), rest


def build_both(directory: Path) -> tuple[Any, Any]:
    """The model of a checkpoint and its drafter, on the meta device."""
    info, ops = open_checkpoint(directory).info, reference_table()
    model = build_model(info, ops, dtype="float32")
    first_cache = len(model.layer_kv())
    return model, build_drafter(model.config, ops, dtype="float32", first_cache=first_cache)


def test_shards_are_written_from_shards_and_side_files_copied(tmp_path: Path) -> None:
    full = write_tiny_checkpoint(tmp_path / "full", "qwen3", num_shards=3)
    (full / "chat_template.jinja").write_text("{{ messages }}")
    (full / "README.md").write_text("# of the whole")
    cut(full, tmp_path / "cut", num_layers=2)
    names = {path.name for path in (tmp_path / "cut").iterdir()}
    shards = {f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)}
    assert names == shards | {
        "config.json",
        "model.safetensors.index.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    index = json.loads((tmp_path / "cut" / "model.safetensors.index.json").read_text())
    tensors = stored(tmp_path / "cut")
    assert index["weight_map"].keys() == tensors.keys()
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert index["metadata"]["total_size"] == total


def test_large_tensors_are_copied_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncate, "CHUNK_BYTES", 1000)
    full = write_tiny_checkpoint(tmp_path / "full", "qwen3_moe")
    sizes: list[int] = []
    read_rows = SafetensorsSource.read_rows

    def spy(source: SafetensorsSource, name: str, first_row: int, destination: Tensor) -> None:
        sizes.append(destination.nbytes)
        read_rows(source, name, first_row, destination)

    monkeypatch.setattr(SafetensorsSource, "read_rows", spy)
    written = cut(full, tmp_path / "cut", num_experts=2)
    assert max(sizes) <= 1000
    assert sum(sizes) == written.num_bytes
    before = stored(full)
    assert all(
        torch.equal(tensor, before[name][: len(tensor)])
        for name, tensor in stored(tmp_path / "cut").items()
    )


def test_progress_counts_the_bytes_that_are_written(tmp_path: Path) -> None:
    full = write_tiny_checkpoint(tmp_path / "full", "llama")
    totals: list[int] = []
    seen: dict[str, int] = {}

    def start(num_bytes: int) -> Any:
        totals.append(num_bytes)
        return seen.__setitem__

    written = truncate_checkpoint(full, tmp_path / "cut", partial(plan_cut, num_layers=1), start)
    assert totals == [written.num_bytes] == [sum(seen.values())]
    assert seen.keys() == stored(tmp_path / "cut").keys()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    full = write_tiny_checkpoint(tmp_path / "full", "llama")
    with pytest.raises(ConfigError, match="nothing is overwritten; field DST"):
        cut(full, full, num_layers=1)
    assert load(full)


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_is_no_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    full = write_tiny_checkpoint(tmp_path / "full", "deepseek_v4")
    edit_config(full, compress_ratios=[0, 0, 4, 3, 4])
    with pytest.raises(ModelLoadError, match=r"compress_ratios\[3\] = 3 is not one of 0"):
        cut(full, tmp_path / "cut", num_layers=2)
    with pytest.raises(ModelLoadError, match="is no directory"):
        cut(full / "model.safetensors", tmp_path / "cut")
    assert not (tmp_path / "cut").exists()


def test_a_router_of_codes_cannot_be_cut(tmp_path: Path) -> None:
    full = write_tiny_checkpoint(tmp_path / "full", "qwen3_moe", quantize=True)
    tensors: Mapping[str, Tensor] = load_file(full / "model.safetensors")
    name = "model.layers.0.mlp.gate.weight"
    codes = tensors[name].to(torch.float8_e4m3fn)
    save_file({**tensors, name: codes}, full / "model.safetensors")
    with pytest.raises(ModelLoadError, match=f"{name} is stored as F8_E4M3; cannot cut it"):
        cut(full, tmp_path / "cut", num_experts=2)
