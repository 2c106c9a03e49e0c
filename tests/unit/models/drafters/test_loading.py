"""Which drafter a checkpoint has, which of its tensors that takes, and what it may not say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.kv.format import row_kv
from deepinfer_core.kv.layout import LayerKV, make_layout
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.models.drafters.build import build_drafter
from deepinfer_core.models.drafters.dspark_v4 import DsparkV4
from deepinfer_core.models.drafters.dspark_v41 import DsparkV41
from deepinfer_core.models.drafters.interface import Drafter
from deepinfer_core.models.drafters.mtp_v3 import MtpV3
from deepinfer_core.models.drafters.mtp_v4 import MtpV4
from deepinfer_core.models.layers.packed import checkpoint_views
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.tiny import TINY_DRAFTERS, tiny_config, write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint
from safetensors.torch import load_file, save_file
from torch import Tensor

PLAIN = {"gemm.dense": "torch.invariant"}
"""The kernel that leaves weights as checkpoints hold them."""
CLASSES = {
    "mtp_v3": MtpV3,
    "mtp_v32": MtpV3,
    "mtp_v4": MtpV4,
    "dspark_v4": DsparkV4,
    "dspark_v41": DsparkV41,
}


REPLAYED = replace(row_kv(64, "float32", "windows", window_size=8), allows_replay=True)


def build(directory: Path) -> tuple[CausalModel, Drafter]:
    checkpoint, ops = open_checkpoint(directory), reference_table(overrides=PLAIN)
    target = build_model(checkpoint.info, ops, dtype="float32")
    first_cache = len(target.layer_kv())
    drafter = build_drafter(target.config, ops, dtype="float32", first_cache=first_cache)
    return target, drafter


def write(directory: Path, name: str, **changes: Any) -> Path:
    family, fields = TINY_DRAFTERS[name]
    return write_tiny_checkpoint(directory, family, **{**fields, **changes})


def edit(directory: Path, **changes: Tensor | None) -> None:
    """Add or (None) remove tensors."""
    path = directory / "model.safetensors"
    tensors: dict[str, Tensor | None] = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


@pytest.mark.parametrize("name", TINY_DRAFTERS)
def test_target_and_drafter_share_a_checkpoint_out(name: str, tmp_path: Path) -> None:
    directory = write(tmp_path, name)
    target, drafter = build(directory)
    assert type(drafter) is CLASSES[name]
    stored = load_file(directory / "model.safetensors")
    views: dict[str, Tensor] = {}
    for module in (target, drafter):
        assert all(parameter.is_meta for parameter in module.parameters())
        load_weights(module, open_checkpoint(directory), device="cpu")
        own = checkpoint_views(module)
        assert not own.keys() & views.keys()
        views |= own
    assert views.keys() == stored.keys()
    for tensor_name in checkpoint_views(drafter):
        assert torch.equal(views[tensor_name], stored[tensor_name]), tensor_name


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "deepseek_v4", "deepseek_v41"])
def test_most_checkpoints_have_none(family: str, tmp_path: Path) -> None:
    _, drafter = build(write_tiny_checkpoint(tmp_path, family))
    assert drafter is None


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    directory = write(tmp_path, "dspark_v4")
    edit(directory, **{"mtp.2.markov_head.markov_w2.weight": None})
    target, drafter = build(directory)
    load_weights(target, open_checkpoint(directory), device="cpu")  # which does not care
    with pytest.raises(ModelLoadError) as caught:
        load_weights(drafter, open_checkpoint(directory), device="cpu")
    assert caught.value.missing == ["mtp.2.markov_head.markov_w2.weight"]


@pytest.mark.parametrize(
    ("name", "tensor_name"),
    [
        ("mtp_v3", "model.layers.3.self_attn.surprise.weight"),
        ("mtp_v4", "mtp.1.enorm.weight"),
        ("dspark_v41", "mtp.0.markov_head.embed.weight"),
    ],
)
def test_an_unexpected_tensor_is_named(name: str, tensor_name: str, tmp_path: Path) -> None:
    directory = write(tmp_path, name)
    edit(directory, **{tensor_name: torch.zeros(3)})
    _, drafter = build(directory)
    with pytest.raises(ModelLoadError) as caught:
        load_weights(drafter, open_checkpoint(directory), device="cpu")
    assert caught.value.unexpected == [tensor_name]


def test_the_copies_of_v3_are_not_read(tmp_path: Path) -> None:
    directory = write(tmp_path, "mtp_v3")
    copies = ("embed_tokens.weight", "shared_head.head.weight")
    edit(directory, **{f"model.layers.3.{name}": torch.zeros(1) for name in copies})
    _, drafter = build(directory)
    load_weights(drafter, open_checkpoint(directory), device="cpu")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mtp_v3", [row_kv(48, "float32", "latents")]),
        ("mtp_v32", [row_kv(48, "float32", "latents"), row_kv(32, "float32", "index keys")]),
        ("mtp_v4", [row_kv(32, "float32", "windows", window_size=24)]),
        ("dspark_v4", [row_kv(32, "float32", "windows", window_size=24)] * 3),
        ("dspark_v41", [REPLAYED] * 3),
    ],
)
def test_caches_join_those_of_the_target(
    name: str, expected: list[LayerKV], tmp_path: Path
) -> None:
    target, drafter = build(write(tmp_path, name))
    assert drafter.layer_kv() == expected
    alone = make_layout(target.layer_kv(), block_size=16)
    both = make_layout([*target.layer_kv(), *drafter.layer_kv()], block_size=16)
    assert len(both.groups) == len(alone.groups)
    (owner,) = {
        both.cache_groups[i] for i in range(len(alone.cache_groups), len(both.cache_groups))
    }
    window_size = expected[0].window_size
    assert both.groups[owner].window_size == window_size


def parse(name: str, changes: dict[str, Any]) -> Any:
    family, fields = TINY_DRAFTERS[name]
    config = tiny_config(family, **{**fields, **changes})
    model_class = ModelRegistry().resolve(config["architectures"][0])
    return model_class.read_config(RawConfig(config, "config.json"))


@pytest.mark.parametrize("name", ["dspark_v4", "dspark_v41"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dspark_block_size": None}, "dspark_block_size is missing"),
        ({"dspark_block_size": 0}, "dspark_block_size = 0 is not at least 1"),
        ({"dspark_markov_rank": "16"}, "dspark_markov_rank = '16' is not a whole number"),
        (
            {"dspark_noise_token_id": 320},
            "dspark_noise_token_id = 320 is not below vocab_size, 320",
        ),
        ({"dspark_target_layer_ids": []}, "dspark_target_layer_ids = [] is not ascending"),
        ({"dspark_target_layer_ids": [3, 1]}, "dspark_target_layer_ids = [3, 1] is not ascending"),
        ({"dspark_target_layer_ids": [3, 9]}, "dspark_target_layer_ids = [3, 9] is not ascending"),
        ({"dspark_num_experts_per_tok": 9}, "dspark_num_experts_per_tok = 9 is not at most"),
    ],
)
def test_what_dspark_fields_cannot_mean(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        parse(name, changes)
    assert message in str(caught.value)


def test_stages_are_counted_by_their_ratios() -> None:
    """`num_nextn_predict_layers` of V4 still counts the layer that DSpark replaced."""
    assert parse("dspark_v4", {}).dspark.num_stages == 3
    two = parse("dspark_v4", {"compress_ratios": [0, 0, 4, 128, 4, 0, 0]})
    assert two.dspark.num_stages == 2
    for ratios, message in (
        ([0, 0, 4, 128, 4], "compress_ratios has 5 entries for 5 layers; DSpark wants one more"),
        ([0, 0, 4, 128, 4, 0, 4, 0], "compress_ratios[6] = 4 is not 0: behind the 5 layers"),
    ):
        with pytest.raises(ModelLoadError) as caught:
            parse("dspark_v4", {"compress_ratios": ratios})
        assert message in str(caught.value)


@pytest.mark.parametrize("name", ["mtp_v3", "mtp_v4"])
def test_more_than_one_predicting_layer_is_not_supported(name: str) -> None:
    config = parse(name, {"num_nextn_predict_layers": 2})
    with pytest.raises(ModelLoadError, match="num_nextn_predict_layers = 2: a drafter has 1 layer"):
        build_drafter(config, reference_table(), dtype="float32", first_cache=9)
