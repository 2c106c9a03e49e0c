from __future__ import annotations

from typing import Any

import pytest
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.rope_config import RopeConfig, read_rope


def read(fields: dict[str, Any], *, head_dim: int = 64, max_position: int = 4096) -> RopeConfig:
    return read_rope(RawConfig(fields, "config.json"), head_dim=head_dim, max_position=max_position)


def test_older_and_newer_spelling_mean_the_same() -> None:
    older = read({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    newer = read({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}})
    assert older == newer
    assert older.rope_type == "linear"
    assert older.theta == 5e5


def test_nothing_said_is_the_plain_embedding() -> None:
    config = read({})
    assert (config.rope_type, config.theta, config.rotary_dim) == ("default", 1e4, 64)


def test_part_of_the_head_rotates() -> None:
    assert read({"partial_rotary_factor": 0.5}).rotary_dim == 32


@pytest.mark.parametrize(
    ("scaling", "reach"),
    [
        ({"rope_type": "default"}, 4096),
        ({"rope_type": "linear", "factor": 4.0}, 16384),
        ({"rope_type": "dynamic", "factor": 2.0}, 8192),
        # Llama 3.1 states the stretched context.
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 512,
            },
            4096,
        ),
        # Qwen2.5 states the original context, others the stretched one.
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
    ],
)
def test_longest_context_includes_the_scaling(scaling: dict[str, Any], reach: int) -> None:
    assert read({"rope_scaling": scaling}).reachable_position == reach


def test_yarn_without_a_factor_takes_the_ratio_of_the_contexts() -> None:
    config = read({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 1024}})
    assert config.factor == 4.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
            "rope type 'longrope' is unknown; known: default, linear, dynamic, llama3, yarn",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": "linear"}, "rope_scaling = 'linear' is not an object"),
        ({"rope_parameters": {"full_attention": {}}}, "full_attention has its own parameters"),
        ({"partial_rotary_factor": 0.05}, "rotary dimension 3 is not even"),
        (
            {"rope_scaling": {"rope_type": "factors", "frequency_factors": [1.0]}},
            "1 frequency factors for 32 frequencies",
        ),
    ],
)
def test_malformed_parameters_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        read(fields)
    assert message in str(caught.value)
