"""Meshes and shares are arithmetic: no process is needed."""

import pytest
import torch
from deepinfer_core.errors import ConfigError
from deepinfer_core.models.layers.attention import Attention
from deepinfer_core.models.layers.linear import Linear, MergedLinear
from deepinfer_core.models.layers.moe import Experts
from deepinfer_core.models.layers.packed import checkpoint_views
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.ops.table import reference_table
from deepinfer_core.parallel.mesh import Mesh, Share
from deepinfer_core.testing.tiny import QUANTIZED, TINY_FAMILIES, tiny_config


class Seat:
    """A process group as far as layers ask before they run."""

    def __init__(self, rank, size):
        self._rank, self._size = rank, size

    def rank(self):
        return self._rank

    def size(self):
        return self._size


def seats(size):
    return [Mesh(Seat(rank, size)) for rank in range(size)]


def on_meta(family, mesh, **overrides):
    """The model of a rank, and the table that its layers bound in."""
    config = tiny_config(family, **overrides)
    model_class = ModelRegistry().resolve(config["architectures"][0])
    ops = reference_table().on(mesh)
    with torch.device("meta"):
        model = model_class(
            model_class.read_config(RawConfig(config, "tiny")), ops, dtype="float32"
        )
    return model, ops


def test_the_default_is_one_rank():
    assert (Mesh().tp_size, Mesh().tp_rank) == (1, 0)
    assert reference_table().mesh == Mesh()
    assert Mesh().share(7, "things") == Share(0, 1)


def test_shares_of_all_ranks_are_the_whole():
    whole = torch.arange(24).view(4, 6)
    for axis in (0, 1):
        shares = [mesh.share(4 if axis == 0 else 6, "things").along(axis) for mesh in seats(2)]
        parts = [share.part_of(whole) for share in shares]
        assert torch.equal(torch.cat(parts, dim=axis), whole)
        assert shares[1].whole_shape(parts[1].shape) == (4, 6)


def test_fewer_things_than_ranks_are_repeated_beside_those_that_use_them():
    shares = [mesh.share_or_repeat(2, "heads") for mesh in seats(4)]
    assert [(share.index, share.size_of(2)) for share in shares] == [(0, 1), (0, 1), (1, 1), (1, 1)]
    assert [mesh.share_or_repeat(4, "heads").index for mesh in seats(2)] == [0, 1]
    assert [mesh.share_or_repeat(1, "heads").count for mesh in seats(2)] == [1, 1]


@pytest.mark.parametrize(
    ("family", "size", "overrides", "message"),
    [
        ("llama", 3, {"vocab_size": 321}, "4 query heads .* mesh.tp_size = 3; .* divisors of 4"),
        ("llama", 2, {"vocab_size": 321}, "321 tokens of the vocabulary .* divisors of 321"),
        ("llama", 2, {"intermediate_size": 97}, "97 intermediate features"),
        (
            "llama",
            2,
            {"num_attention_heads": 6, "num_key_value_heads": 3},
            "3 key and value heads .* divisors and multiples of 3",
        ),
        ("qwen3_moe", 2, {"moe_intermediate_size": 33}, "33 intermediate features of an expert"),
        ("deepseek_v3", 5, {}, "4 heads"),
        ("deepseek_v4", 4, {}, "2 groups of heads"),
        ("deepseek_v41", 4, {}, "2 groups of heads"),
        ("deepseek_v41", 2, QUANTIZED["deepseek_v41"], "1 groups of columns of the memory"),
        ("deepseek_v41", 2, {"engram_head_dim": 31}, "31 groups of columns of the memory"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_divided_are_refused(family, size, overrides, message):
    with pytest.raises(ConfigError, match=message):
        on_meta(family, Mesh(Seat(0, size)), **overrides)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_one_rank_binds_no_collective(family):
    whole, ops = on_meta(family, Mesh())
    of_one, ops_of_one = on_meta(family, Mesh(Seat(0, 1)))
    bound = [choice.problem for choice in ops.choices()]
    assert bound == [choice.problem for choice in ops_of_one.choices()]
    assert not [problem for problem in bound if problem.op.startswith("comm.")]
    shapes, shapes_of_one = (
        {name: view.shape for name, view in checkpoint_views(model).items()}
        for model in (whole, of_one)
    )
    assert shapes == shapes_of_one


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_more_ranks_bind_the_same_ops_and_collectives(family):
    roles = []
    for mesh in (Mesh(), Mesh(Seat(1, 2))):
        problems = [choice.problem for choice in on_meta(family, mesh)[1].choices()]
        roles.append([(p.op, p.role) for p in problems if not p.op.startswith("comm.")])
    assert roles[0] == roles[1]
    assert any(p.op == "comm.all_reduce" and p.role == "attn.out" for p in problems)
    assert any(p.op == "comm.all_gather" and p.role == "lm_head" for p in problems)


def test_each_layer_of_experts_sums_once():
    _, ops = on_meta("deepseek_v3", Mesh(Seat(0, 2)), first_k_dense_replace=0)
    sums = [c.problem.role for c in ops.choices() if c.problem.op == "comm.all_reduce"]
    assert sorted(sums) == ["attn.out", "embed", "lm_head", "moe.sum"]


def test_caches_hold_the_heads_of_the_rank():
    for family, of_one, of_two in (("llama", 2, 1), ("deepseek_v3", 1, 1), ("deepseek_v4", 1, 1)):
        for mesh, num_heads in ((Mesh(), of_one), (Mesh(Seat(1, 2)), of_two)):
            caches = on_meta(family, mesh)[0].layer_kv()
            assert {cache.num_kv_heads for cache in caches} == {num_heads}, family


def test_shares_keep_codes_only_where_blocks_of_scales_end():
    ops = reference_table().on(Mesh(Seat(0, 2)))
    with torch.device("meta"):
        rows, columns, all_ = (
            Linear(ops, 256, 512, dtype="float32", role="x", shard=shard)
            for shard in ("out", "in", None)
        )
        odd = [
            Linear(ops, 320, 320, dtype="float32", role="x", shard=shard)
            for shard in ("out", "in", None)
        ]
        merged = MergedLinear(
            ops,
            64,
            {"a": 128, "b": 320},
            dtype="float32",
            role="x",
            shares={"b": ops.mesh.share(320, "b")},
        )
    assert all(linear.takes_codes("fp8_block128") for linear in (rows, columns, all_))
    assert [linear.takes_codes("fp8_block128") for linear in odd] == [False, False, True]
    assert [linear.takes_codes("mxfp4") for linear in odd] == [True, True, True]
    assert (merged.takes_codes("fp8_block128"), merged.takes_codes("fp8_block32")) == (False, True)


def test_shares_of_experts_keep_codes_where_groups_of_scales_end():
    ops = reference_table().on(Mesh(Seat(0, 2)))
    for size, takes in ((32, False), (64, True)):
        model, _ = on_meta("qwen3_moe", ops.mesh, moe_intermediate_size=size)
        experts = [module for module in model.modules() if isinstance(module, Experts)]
        assert {layer.takes_codes("mxfp4") for layer in experts} == {takes}


def test_heads_of_keys_follow_those_of_queries():
    """Rank 3 of 4 has the last query head, which reads the second of two key heads."""
    model, _ = on_meta("llama", Mesh(Seat(3, 4)))
    layer = next(module for module in model.modules() if isinstance(module, Attention))
    assert layer.head_counts == (1, 1, 1)
    assert layer.qkv_proj.shares["q_proj"] == Share(3, 4)
    assert layer.qkv_proj.shares["k_proj"] == Share(1, 2)
