"""What a rank loads is its part of what one rank would load, and no more is read."""

import pytest
import torch
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.layers.packed import checkpoint_shares, checkpoint_views
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.table import reference_table
from deepinfer_core.parallel.mesh import Mesh
from deepinfer_core.testing.tiny import TINY_FAMILIES, write_tiny_checkpoint
from deepinfer_core.testing.tiny_gguf import write_tiny_gguf
from deepinfer_core.text.loading import load_tokenizer
from deepinfer_core.weights import shares as shares_module
from deepinfer_core.weights.checkpoint import open_checkpoint
from deepinfer_core.weights.safetensors_reader import SafetensorsSource

REPLICATED = (
    ".gate.",
    "a_proj",
    "wq_a",
    "wkv",
    "indexer",
    "compressor",
    "hc_",
    "engram.wkv",
    "k_weight",
    "q_weight",
)
"""Parts of the names of matrices that every rank has."""


class Seat:
    """A process group as far as layers ask before they run."""

    def __init__(self, rank, size=2):
        self._rank, self._size = rank, size

    def rank(self):
        return self._rank

    def size(self):
        return self._size


def load(path, mesh, **options):
    checkpoint = open_checkpoint(path, **options)
    # These kernels leave weights as they were loaded.
    ops = reference_table(batch_invariant=True).on(mesh)
    model = build_model(checkpoint.info, ops, dtype="float32")
    vocabulary = load_tokenizer(path) if path.is_dir() else None
    load_weights(model, checkpoint, device="cpu", vocabulary=vocabulary)
    return model


def assert_divided(path, **options):
    """Every rank has its part, of the names that it says are divided."""
    whole = checkpoint_views(load(path, Mesh(), **options))
    for rank in range(2):
        model = load(path, Mesh(Seat(rank)), **options)
        views, shares = checkpoint_views(model), checkpoint_shares(model)
        assert views.keys() == whole.keys()
        assert shares
        for name, view in views.items():
            expected = shares[name].part_of(whole[name]) if name in shares else whole[name]
            assert torch.equal(view, expected), (rank, name)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_each_rank_has_its_part(family, tmp_path):
    assert_divided(write_tiny_checkpoint(tmp_path, family))


@pytest.mark.parametrize("family", ["deepseek_v3", "deepseek_v4"])
def test_codes_are_decoded_within_blocks_too(family, tmp_path):
    """A half of these matrices begins within a block of 128 rows or columns."""
    assert_divided(write_tiny_checkpoint(tmp_path, family, quantize=True))


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {}),
        ("deepseek_v4", {"quantize": True}),
        ("deepseek_v41", {"quantize": True, "engram_head_dim": 64}),
    ],
)
def test_random_weights_are_those_of_one_rank(family, overrides, tmp_path):
    directory = write_tiny_checkpoint(tmp_path, family, **overrides)
    assert_divided(directory, load_format="dummy")


def test_sources_without_rows_are_cut(tmp_path):
    assert_divided(write_tiny_gguf(tmp_path / "x.gguf", "llama", kind="Q8_0"))


def test_columns_are_cut_stripe_by_stripe(tmp_path, monkeypatch):
    monkeypatch.setattr(shares_module, "CHUNK_ELEMENTS", 5 * 64)
    assert_divided(write_tiny_checkpoint(tmp_path, "llama"))


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_a_rank_holds_half_of_what_is_divided(family, tmp_path):
    directory = write_tiny_checkpoint(tmp_path, family)
    whole = checkpoint_views(load(directory, Mesh()))
    model = load(directory, Mesh(Seat(1)))
    views, shares = checkpoint_views(model), checkpoint_shares(model)
    divided = sum(whole[name].nbytes for name in shares)
    held = sum(parameter.nbytes for parameter in model.parameters())
    assert 2 * sum(views[name].nbytes for name in shares) == divided
    everything = sum(view.nbytes for view in whole.values())
    assert held == everything - divided // 2
    matrices = [name for name in whole.keys() - shares.keys() if whole[name].dim() > 1]
    assert [name for name in matrices if not any(part in name for part in REPLICATED)] == []


def test_rows_of_other_ranks_are_not_read(tmp_path, monkeypatch):
    directory = write_tiny_checkpoint(tmp_path, "llama")
    read = []
    original = SafetensorsSource.read_rows

    def counted(self, name, first_row, destination):
        read.append((name, first_row, len(destination)))
        original(self, name, first_row, destination)

    monkeypatch.setattr(SafetensorsSource, "read_rows", counted)
    load(directory, Mesh(Seat(1)))
    spans = {name: (first, count) for name, first, count in read}
    assert len(spans) == len(read)
    assert spans["model.embed_tokens.weight"] == (160, 160)
    assert spans["model.layers.0.self_attn.k_proj.weight"] == (16, 16)
    assert spans["model.layers.0.mlp.up_proj.weight"] == (48, 48)
    # Columns are in all rows.
    assert spans["model.layers.0.self_attn.o_proj.weight"] == (0, 64)


def test_shapes_are_compared_as_wholes(tmp_path):
    """A checkpoint of just what a rank holds is of another model."""
    directory = write_tiny_checkpoint(tmp_path / "whole", "llama")
    narrow = write_tiny_checkpoint(tmp_path / "narrow", "llama", intermediate_size=48)
    (narrow / "config.json").write_text((directory / "config.json").read_text())
    with pytest.raises(ModelLoadError, match="mismatched") as caught:
        load(narrow, Mesh(Seat(0)))
    assert "gate_proj.weight: wanted [96, 64] float32, found [48, 64] F32" in str(caught.value)
