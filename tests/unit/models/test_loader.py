from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from deepinfer_core.errors import EngineError, ModelLoadError
from deepinfer_core.models.decoder import DecoderModel
from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.packed import checkpoint_views
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.ops.reference.gemm import packs
from deepinfer_core.ops.table import reference_table
from deepinfer_core.plugin_api.records import ModelSpec
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import TINY_FAMILIES, tiny_weights, write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint
from safetensors.torch import load_file, save_file

PLAIN = {"gemm.dense": "torch.invariant"}
"""The kernel that leaves weights as checkpoints hold them."""


def load(
    directory: Path,
    dtype: str = "float32",
    overrides: Mapping[str, str] = PLAIN,
    **options: Any,
) -> DecoderModel:
    checkpoint = open_checkpoint(directory, **options)
    model = build_model(checkpoint.info, reference_table(overrides=overrides), dtype=dtype)
    load_weights(model, checkpoint, device="cpu")
    return model


def edit_weights(directory: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors of a single-file checkpoint."""
    path = directory / "model.safetensors"
    tensors: dict[str, torch.Tensor | None] = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def test_building_takes_no_memory_and_binds_every_op(tmp_path: Path) -> None:
    info = open_checkpoint(write_tiny_checkpoint(tmp_path, "qwen3_moe")).info
    ops = reference_table()
    model = build_model(info, ops, dtype="bfloat16")
    assert all(parameter.is_meta for parameter in model.parameters())
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    roles = {choice.problem.role for choice in ops.choices()}
    assert {"attn.qkv", "attn.core", "mlp.gate_up", "moe.experts", "lm_head"} <= roles
    ops.freeze()
    with pytest.raises(EngineError, match="froze"):
        build_model(info, ops, dtype="float32")


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
def test_every_parameter_gets_its_tensor(family: str, tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, family, num_shards=3)
    views = checkpoint_views(load(directory))
    expected = tiny_weights(json.loads((directory / "config.json").read_text()))
    assert views.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(views[name], tensor), name


def test_views_cover_fused_parameters_without_overlap(tmp_path: Path) -> None:
    model = load(write_tiny_checkpoint(tmp_path, "qwen2"))
    views = checkpoint_views(model)
    assert sum(view.numel() for view in views.values()) == sum(
        parameter.numel() for parameter in model.parameters()
    )
    for view in views.values():
        view.zero_()
    assert all(not parameter.any() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_kernel_lays_weights_out_anew_in_their_place(dtype: str, tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "qwen2")
    prepared, plain = load(directory, dtype, {}), load(directory, dtype)
    sizes, plain_sizes = (sum(p.nbytes for p in m.parameters()) for m in (prepared, plain))
    assert sizes == plain_sizes
    for a, b in zip(prepared.modules(), plain.modules(), strict=True):
        if isinstance(a, Linear):
            assert a.weight.is_mkldnn == packs(b.weight.dtype)
            assert not b.weight.is_mkldnn
            for rows in (0, 1, 3, 17):
                x = torch.randn(rows, b.weight.shape[1], dtype=b.weight.dtype)
                torch.testing.assert_close(a(x), b(x), rtol=1e-2, atol=1e-2)


def test_weights_are_converted_to_the_models_dtype(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama", torch_dtype="bfloat16")
    wide = checkpoint_views(load(directory))
    narrow = checkpoint_views(load(directory, "float16"))
    for name, view in narrow.items():
        assert view.dtype == torch.float16
        torch.testing.assert_close(view.float(), wide[name], rtol=2**-10, atol=1e-6)


def test_tied_embeddings_are_one_tensor_and_a_stored_copy_is_ignored(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    edit_weights(directory, **{"lm_head.weight": torch.zeros(320, 64)})
    model = load(directory)
    embedding = model.model.embed_tokens.weight
    assert model.lm_head is None
    hidden = torch.randn(2, 64)
    torch.testing.assert_close(model.compute_logits(hidden), hidden @ embedding.T)


def test_rotary_buffers_of_old_checkpoints_are_ignored(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(directory, **{name: torch.zeros(8)})
    load(directory)


def test_strict_errors_list_all_names_sorted(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama")
    edit_weights(
        directory,
        **{
            "model.norm.weight": None,
            "model.layers.1.self_attn.k_proj.weight": None,
            "model.extra.weight": torch.zeros(2),
            "model.layers.0.self_attn.q_proj.weight": torch.zeros(64, 63),
            "model.layers.2.mlp.up_proj.weight": torch.zeros(96, 64, dtype=torch.int8),
        },
    )
    with pytest.raises(ModelLoadError) as caught:
        load(directory)
    error = caught.value
    assert str(directory) in str(error)
    assert error.missing == ["model.layers.1.self_attn.k_proj.weight", "model.norm.weight"]
    assert error.unexpected == ["model.extra.weight"]
    assert error.mismatched == [
        "model.layers.0.self_attn.q_proj.weight: wanted [64, 64] float32, found [64, 63] F32",
        "model.layers.2.mlp.up_proj.weight: wanted [96, 64] float32, found [96, 64] I8",
    ]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"model.norm.weight": None}, "missing"),
        ({"model.extra.weight": torch.zeros(2)}, "unexpected"),
        ({"model.norm.weight": torch.zeros(2)}, "mismatched"),
    ],
)
def test_each_kind_of_misfit_is_an_error_alone(
    change: dict[str, torch.Tensor | None], kind: str, tmp_path: Path
) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama")
    edit_weights(directory, **change)
    with pytest.raises(ModelLoadError) as caught:
        load(directory)
    assert {
        name for name in ("missing", "unexpected", "mismatched") if getattr(caught.value, name)
    } == {kind}


def test_nothing_is_allocated_when_names_do_not_fit(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "llama")
    edit_weights(directory, **{"model.norm.weight": None})
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, reference_table(), dtype="float32")
    with pytest.raises(ModelLoadError):
        load_weights(model, checkpoint, device="cpu")
    assert all(parameter.is_meta for parameter in model.parameters())


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_checkpoint(tmp_path, "qwen3_moe"))
    model = build_model(checkpoint.info, reference_table(), dtype="bfloat16")
    seen: dict[str, int] = {}
    load_weights(model, checkpoint, device="cpu", progress=seen.__setitem__)
    assert sum(seen.values()) == sum(parameter.nbytes for parameter in model.parameters())


def test_dummy_weights_need_the_configuration_only(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "qwen3_moe")
    (directory / "model.safetensors").unlink()
    model = load(directory, load_format="dummy")
    logits = HandRunner(model).feed({0: list(range(3, 40))})[0]
    assert logits.isfinite().all()
    assert 0.5 < logits.std() < 2.0
    again = HandRunner(load(directory, load_format="dummy")).feed({0: list(range(3, 40))})[0]
    assert torch.equal(logits, again)


def test_vocabulary_chunks_are_slices_of_the_logits(tmp_path: Path) -> None:
    for family in ("llama", "qwen3"):  # own head, tied head
        model = load(write_tiny_checkpoint(tmp_path / family, family), "bfloat16")
        hidden = torch.randn(5, 64, dtype=torch.bfloat16)
        logits = model.compute_logits(hidden)
        assert logits.dtype == torch.float32
        assert logits.shape == (5, 320)
        chunks = [model.lm_head_chunk(hidden, start, start + 80) for start in range(0, 320, 80)]
        torch.testing.assert_close(torch.cat(chunks, dim=1), logits, rtol=2**-7, atol=1e-6)


def test_layers_say_what_they_store(tmp_path: Path) -> None:
    model = load(write_tiny_checkpoint(tmp_path, "qwen2_window"), "bfloat16")
    first, *others = model.layer_kv()
    assert (first.kind, first.window_size, first.bytes_per_token) == ("full", None, 2 * 2 * 16 * 2)
    assert [(layer.kind, layer.window_size) for layer in others] == [("window", 24)] * 2


def test_a_plugins_model_loads_like_a_built_in_one(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path, "qwen3")
    fields = json.loads((directory / "config.json").read_text())
    fields["architectures"] = ["MyForCausalLM"]
    (directory / "config.json").write_text(json.dumps(fields))
    registry = ModelRegistry(
        [
            ModelSpec(
                name="mine",
                target="deepinfer_core.models.qwen:Qwen3",
                architectures=("MyForCausalLM",),
            )
        ]
    )
    checkpoint = open_checkpoint(directory, registry=registry)
    model = build_model(checkpoint.info, reference_table(), dtype="float32", registry=registry)
    load_weights(model, checkpoint, device="cpu")
    assert HandRunner(model).feed({0: [5, 6, 7]})[0].isfinite().all()
