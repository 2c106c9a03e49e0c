"""Fields of a configuration still fit each other when layers and experts go."""

from __future__ import annotations

from typing import Any

import pytest
from deepinfer_core.errors import ConfigError
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.testing.tiny import TINY_FAMILIES, tiny_config
from deepinfer_core.weights.cut_config import cut_config, plan_cut, text_fields

V41: dict[str, Any] = {
    "num_hidden_layers": 40,
    "n_routed_experts": 384,
    "num_experts_per_tok": 6,
    "compress_ratios": [0, 0, *[2] * 18, *[1] * 20, 0, 0, 0],
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "engram_head_dim": 256,
    "num_nextn_predict_layers": 3,
    "dspark_block_size": 5,
    "dspark_target_layer_ids": [37, 38, 39],
    "dspark_n_routed_experts": 128,
    "dspark_num_experts_per_tok": 3,
}


def cut(fields: dict[str, Any], **options: Any) -> dict[str, Any]:
    before = dict(fields)
    after = cut_config(fields, plan_cut(fields, **options))
    assert fields == before
    return after


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
@pytest.mark.parametrize("keeps_predictors", [False, True])
def test_every_cut_of_every_family_is_read(family: str, keeps_predictors: bool) -> None:
    fields = tiny_config(family)
    model_class = ModelRegistry().resolve(fields["architectures"][0])
    text = text_fields(fields)
    has_experts = "n_routed_experts" in text or "num_experts" in text
    for num_layers in range(1, text["num_hidden_layers"] + 1):
        for num_experts in range(1, 9) if has_experts else [None]:
            after = cut(
                fields,
                num_layers=num_layers,
                num_experts=num_experts,
                keeps_predictors=keeps_predictors,
            )
            config: Any = model_class.read_config(RawConfig(after, "config.json"))
            assert config.num_layers == num_layers
            if num_experts is not None:
                assert config.moe.num_experts == num_experts
                assert config.moe.num_experts_per_token <= num_experts


def test_sources_stay_where_their_layers_do() -> None:
    after = cut({"text_config": V41, "image_token_id": 7}, num_layers=24, num_experts=2)
    assert after.keys() == {"text_config", "image_token_id"}
    text = after["text_config"]
    assert text["compress_ratios"] == [0, 0, *[2] * 18, *[1] * 4]
    assert text["kv_source_layer_ids"] == [2, 8, 14, 20]
    assert text["index_source_layer_ids"] == [2, 8, 14, 20]
    assert text["candidate_source_layer_id"] == 20
    assert text["engram_layer_ids"] == [1, 14]
    assert text["num_nextn_predict_layers"] == 0
    assert not any(name.startswith("dspark_") for name in text)
    assert (text["n_routed_experts"], text["num_experts_per_tok"]) == (2, 2)


def test_what_belongs_to_layers_that_go_goes_with_them() -> None:
    text = cut(V41, num_layers=14)
    assert (text["kv_source_layer_ids"], text["index_source_layer_ids"]) == ([2, 8], [2, 8])
    assert not any(name.startswith("candidate_") for name in text)
    assert text["engram_layer_ids"] == [1]
    assert text["engram_num_embeddings"] == [384006168]
    assert not any(name.startswith("engram_") for name in cut(V41, keeps_engrams=False))
    assert not any(name.startswith("engram_") for name in cut(V41, num_layers=1))


def test_dspark_reads_the_last_layers_of_what_stays() -> None:
    text = cut(V41, num_layers=10, num_experts=2, keeps_predictors=True)
    assert text["dspark_target_layer_ids"] == [7, 8, 9]
    assert text["compress_ratios"] == [0, 0, *[2] * 8, 0, 0, 0]
    assert text["num_nextn_predict_layers"] == 3
    assert (text["dspark_n_routed_experts"], text["dspark_num_experts_per_tok"]) == (2, 2)
    with pytest.raises(ConfigError, match=r"--layers = 2; allowed: 3 to 40 with --predictors"):
        cut(V41, num_layers=2, keeps_predictors=True)


@pytest.mark.parametrize(
    ("count", "groups", "kept_groups"), [(8, 4, 2), (6, 3, 2), (5, 1, 1), (4, 4, 4), (2, 2, 2)]
)
def test_groups_divide_the_experts_and_reach_enough(
    count: int, groups: int, kept_groups: int
) -> None:
    after = cut(tiny_config("deepseek_v3"), num_experts=count)
    assert (after["n_group"], after["topk_group"]) == (groups, kept_groups)
    assert after["num_experts_per_tok"] == min(4, count)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("llama", {"num_layers": 0}, "field --layers = 0; allowed: 1 to 3"),
        ("llama", {"num_layers": 4}, "field --layers = 4; allowed: 1 to 3"),
        ("qwen3_moe", {"num_experts": 9}, "field --experts = 9; allowed: 1 to 8"),
        ("llama", {"num_experts": 2}, "--experts = 2; allowed: nothing: the model has no experts"),
    ],
)
def test_what_cannot_be_cut(family: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_cut(tiny_config(family), **options)
    assert message in str(caught.value)
