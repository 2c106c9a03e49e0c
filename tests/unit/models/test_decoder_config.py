from __future__ import annotations

from typing import Any

import pytest
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.decoder_config import DecoderConfig
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.testing.tiny import tiny_config


def read(fields: dict[str, Any]) -> DecoderConfig:
    model_class = ModelRegistry().resolve(fields["architectures"][0])
    return model_class.read_config(RawConfig(fields, "dir/config.json"))


def read_family(family: str, **overrides: Any) -> DecoderConfig:
    return read(tiny_config(family, **overrides))


def without(family: str, *names: str) -> dict[str, Any]:
    return {name: value for name, value in tiny_config(family).items() if name not in names}


def test_families_differ_in_biases_and_head_norms() -> None:
    llama, qwen2, qwen3 = (read_family(family) for family in ("llama", "qwen2", "qwen3"))
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias, llama.qk_norm) == (False,) * 4
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.qk_norm) == (False, False, True)
    biased = read_family("llama", attention_bias=True, mlp_bias=True)
    assert (biased.qkv_bias, biased.o_bias, biased.mlp_bias) == (True, True, True)


def test_head_dim_defaults_by_family() -> None:
    assert read(without("llama", "head_dim")).head_dim == 16
    assert read(without("qwen3", "head_dim")).head_dim == 128
    assert read_family("llama", head_dim=40).head_dim == 40


@pytest.mark.parametrize(
    ("family", "overrides", "windows"),
    [
        ("llama", {}, (None, None, None)),
        ("mistral", {}, (24, 24, 24)),
        ("mistral", {"sliding_window": None}, (None, None, None)),
        ("qwen2", {"sliding_window": 24, "max_window_layers": 1}, (None, None, None)),
        ("qwen2_window", {}, (None, 24, 24)),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 9,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (9, None, 9),
        ),
    ],
)
def test_windows_by_layer(
    family: str, overrides: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    assert read_family(family, **overrides).windows == windows


def test_mistral_without_a_word_about_windows_has_its_first_release_window() -> None:
    assert read(without("mistral", "sliding_window")).windows == (4096,) * 3


def test_sparse_layers() -> None:
    moe = read_family("qwen3_moe").moe
    assert moe is not None
    assert (moe.num_experts, moe.num_experts_per_token, moe.intermediate_size) == (8, 2, 48)
    assert (moe.renormalize, moe.layers) == (True, frozenset({0, 2}))
    every_second = read_family("qwen3_moe", mlp_only_layers=[], decoder_sparse_step=2).moe
    assert every_second is not None
    assert every_second.layers == {1}


def test_newer_name_of_the_number_of_experts() -> None:
    moe = read(without("qwen3_moe", "num_experts") | {"num_local_experts": 4}).moe
    assert moe is not None
    assert moe.num_experts == 4


@pytest.mark.parametrize(
    ("family", "overrides", "message"),
    [
        ("llama", {"hidden_size": None}, "dir/config.json: hidden_size is missing"),
        ("llama", {"vocab_size": "many"}, "vocab_size = 'many' is not a whole number"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers = 0 is not at least 1"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads = 0 is not at least 1"),
        ("llama", {"num_key_value_heads": 3}, "4 query heads do not divide over 3 kv heads"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu'; only silu is supported"),
        ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings = 1 is not true or false"),
        ("llama", {"rms_norm_eps": "1e-5"}, "rms_norm_eps = '1e-5' is not a number"),
        (
            "qwen2_window",
            {"layer_types": ["full_attention"]},
            "1 layer_types for 3 hidden layers",
        ),
        (
            "qwen2_window",
            {"layer_types": ["linear_attention"] * 3},
            "layer types linear_attention are unknown",
        ),
        (
            "llama",
            {"layer_types": ["sliding_attention"] * 3},
            "layer_types has windows but no sliding_window is set",
        ),
        (
            "qwen3_moe",
            {"num_experts_per_tok": 9},
            "num_experts_per_tok = 9 is not between 1 and 8 experts",
        ),
        ("qwen3_moe", {"mlp_only_layers": ["1"]}, "mlp_only_layers = ['1'] is not a list of int"),
    ],
)
def test_malformed_configurations_name_file_and_field(
    family: str, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError) as caught:
        read_family(family, **overrides)
    assert message in str(caught.value)
