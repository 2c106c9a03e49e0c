"""Bytes and products of single ops, counted by hand, and of whole steps by the models' sizes."""

import random

import pytest
import torch
from deepinfer_core.bench.op_costs import op_cost
from deepinfer_core.bench.steps import add_prompts, decoding, random_ids, recording, run_out
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.tiny import write_tiny_checkpoint


def meta_of(query_lens, seq_lens, block_size=4):
    """A batch; only its lengths count."""
    nothing = torch.zeros(0, dtype=torch.int32)
    return AttentionMeta(
        cu_seqlens_q=nothing,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=nothing,
        slot_mapping=nothing,
        positions=nothing,
        block_size=block_size,
        query_lens=query_lens,
        seq_len_bounds=[1000] * len(query_lens),  # bounds that do not count
    )


def bf16(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16)


def test_a_product_reads_both_factors_and_writes_the_result():
    x, weight = bf16(3, 8), bf16(5, 8)
    cost = op_cost("gemm.dense", (x, weight), {}, bf16(3, 5))
    assert (cost.num_bytes, cost.flop, cost.dtype) == (
        2 * (24 + 40 + 15),
        2 * 3 * 5 * 8,
        "bfloat16",
    )


def test_codes_count_as_they_are_stored():
    codes, scales = torch.zeros(256, 128, dtype=torch.float8_e4m3fn), torch.zeros(2, 1)
    cost = op_cost("gemm.coded", (bf16(3, 128), codes, scales, "fp8_block128"), {}, bf16(3, 256))
    assert cost.num_bytes == 2 * 3 * 128 + 256 * 128 + 8 + 2 * 3 * 256
    assert (cost.flop, cost.dtype) == (2 * 3 * 128 * 256, "float8_e4m3fn")


@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "window", "pairs", "rows"),
    [
        ([1], [10], None, 10, 10),
        ([1, 1], [10, 3], None, 13, 13),
        ([4], [4], None, 1 + 2 + 3 + 4, 4),
        ([3], [10], None, 8 + 9 + 10, 10),
        ([1], [10], 4, 4, 4),
        ([3], [10], 4, 12, 6),
        ([4], [4], 2, 1 + 2 + 2 + 2, 4),
        ([2], [3], 8, 2 + 3, 3),
    ],
)
def test_attention_reads_what_its_queries_see(query_lens, seq_lens, window, pairs, rows):
    """2 key heads of 8 dims, 6 query heads; the cache has more pages than are read."""
    q, cache = bf16(sum(query_lens), 6, 8), [bf16(50, 4, 2, 8), bf16(50, 4, 2, 8)]
    cost = op_cost("attn.paged", (q, *cache, meta_of(query_lens, seq_lens), 1.0),
                   {"window": window}, bf16(*q.shape))  # fmt: skip
    assert cost.flop == pairs * 6 * 2 * (8 + 8)
    assert cost.num_bytes == 2 * 2 * q.numel() + rows * 2 * (2 * 8) * 2


def test_one_cache_for_keys_and_values_is_read_once():
    q, cache, meta = bf16(1, 6, 8), bf16(50, 4, 2, 8), meta_of([1], [10])
    cost = op_cost("attn.paged", (q, cache, cache, meta, 1.0), {}, bf16(1, 6, 8))
    assert cost.num_bytes == 2 * (48 + 48 + 10 * 2 * 8)


def test_latents_serve_all_heads():
    q, rope, cache = bf16(2, 6, 16), bf16(2, 6, 4), bf16(50, 4, 20)
    cost = op_cost("attn.mla", (q, rope, cache, meta_of([1, 1], [7, 9]), 1.0), {}, bf16(2, 6, 16))
    assert cost.flop == 16 * 6 * 2 * (16 + 4 + 16)
    assert cost.num_bytes == 2 * (2 * 6 * (16 + 4 + 16)) + 16 * 20 * 2


def test_expanded_latents_cost_a_product_each():
    q, weight = bf16(5, 6, 8 + 4), bf16(6, 8 + 10, 16)
    call = (q, bf16(50, 4, 20), weight, meta_of([5], [9]), 1.0)
    cost = op_cost("attn.mla_prefill", call, {}, bf16(5, 6, 10))
    pairs = 5 + 6 + 7 + 8 + 9
    assert cost.flop == pairs * 6 * 2 * (12 + 10) + 9 * 2 * 6 * 18 * 16


def test_only_experts_that_are_needed_are_read():
    ids = torch.tensor([[0, 3], [3, 5]], dtype=torch.int32)
    x, w13, w2 = bf16(2, 16), bf16(8, 2 * 12, 16), bf16(8, 16, 12)
    cost = op_cost("moe.experts", (x, ids, torch.zeros(2, 2), w13, w2), {}, bf16(2, 16))
    assert cost.flop == 4 * 2 * 3 * 12 * 16
    assert cost.num_bytes == 2 * (32 + 32) + 4 * 4 + 4 * 4 + 3 * 2 * 3 * 12 * 16


def test_experts_elsewhere_cost_nothing():
    ids, here = torch.tensor([[0, 3]], dtype=torch.int32), torch.tensor([-1, -1, -1, 0, 1, -1])
    call = (bf16(1, 16), ids, torch.zeros(1, 2), bf16(2, 24, 16), bf16(2, 16, 12))
    cost = op_cost("moe.experts", call, {"expert_map": here.int()}, bf16(1, 16))
    assert cost.flop == 2 * 3 * 12 * 16


def test_sparse_attention_reads_each_named_row_once():
    rows = torch.tensor([[1, 2, -1], [2, 3, 4]], dtype=torch.int32)
    q, cache = bf16(2, 6, 20), bf16(50, 4, 20)
    cost = op_cost("attn.sparse_mla", (q, cache, rows, 1.0, 16), {}, bf16(2, 6, 16))
    assert cost.flop == 5 * 6 * 2 * (20 + 16)
    assert cost.num_bytes == 2 * 240 + 4 * 6 + 2 * 192 + 4 * 20 * 2


def test_a_store_writes_what_it_reads():
    k, cache, slots = bf16(3, 2, 8), bf16(50, 4, 2, 8), torch.zeros(3, dtype=torch.int32)
    cost = op_cost("kv.store", (k, bf16(3, 2, 8), cache, cache, slots), {}, None)
    assert cost.num_bytes == 2 * 2 * 2 * 48 + 3 * 4


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory):
    def make(family, **fields):
        path = write_tiny_checkpoint(tmp_path_factory.mktemp(family) / "model", family)
        fields = {"num_blocks": 200, "max_num_seqs": 8, "prefix_caching": False, **fields}
        config = EngineConfig.from_flat(str(path), dtype="float32", **fields)
        return Engine.from_config(config, PluginHost(load_entry_points=False))

    return make


def step_cost(engine, batch, context):
    with (
        decoding(engine, batch, context=context, num_steps=4) as requests,
        recording(engine, keeps_arguments=False) as recorder,
    ):
        engine.advance()
        lens = [r.num_prompt_tokens + len(r.output_token_ids) for r in requests]
    costs = [call.cost for call in recorder.calls]
    return sum(cost.num_bytes for cost in costs), sum(cost.flop for cost in costs), lens


@pytest.mark.parametrize(("family", "top_k"), [("llama", 0), ("qwen3_moe", 2), ("deepseek_v3", 4)])
def test_a_decode_step_reads_its_weights_and_its_cache(make_engine, family, top_k):
    """Of one token; what the experts it does not reach hold is not read, nor other embeddings."""
    engine = make_engine(family)
    model = engine.runner.model
    num_bytes, flop, (length,) = step_cost(engine, 1, 30)
    matrices = sum(p.nbytes for n, p in model.named_parameters() if "embed" not in n)
    idle = sum(
        (len(p) - top_k) * p[0].nbytes for n, p in model.named_parameters() if ".experts." in n
    )
    kv = sum(layer.bytes_per_token for layer in model.layer_kv()) * length
    assert num_bytes == pytest.approx(matrices - idle + kv, rel=0.15)  # the rest is activations
    assert num_bytes > matrices - idle + kv
    assert flop > 2 * (matrices - idle) / 4 * 0.95


def test_a_prompt_in_parts_costs_the_products_of_one_in_whole(make_engine):
    sums = []
    for budget in (60, 20):
        engine = make_engine("llama", max_num_batched_tokens=budget)
        with recording(engine, keeps_arguments=False) as recorder:
            add_prompts(engine, [random_ids(random.Random(1), 60, 320)], 1)
            run_out(engine)
        attention = [c for c in recorder.calls if c.bound.problem.op == "attn.paged"]
        sums.append(sum(call.cost.flop for call in attention))
    assert len(attention) == 3 * 3
    assert sums[0] == sums[1] > 0
