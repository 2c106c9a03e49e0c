"""A tiny random model in place, shared by the engines of these tests."""

from dataclasses import replace

import pytest
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.engine_setup import load_model
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.tiny import write_tiny_checkpoint


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "llama", "llama")


@pytest.fixture(scope="session")
def make_engine(model_dir):
    """Engines over one loaded model; keyword arguments are flat configuration fields."""
    options = {"dtype": "float32", "batch_invariant": True}
    loaded = load_model(
        EngineConfig.from_flat(str(model_dir), **options), PluginHost(load_entry_points=False)
    )

    def make(stages=None, proposer=None, drafter=None, **fields):
        fields = {**options, "num_blocks": 200, "draft_guard": False, **fields}
        drafting = replace(loaded, proposer=proposer, drafter=drafter)
        return Engine.from_loaded(
            EngineConfig.from_flat(str(model_dir), **fields), drafting, stages
        )

    make.loaded = loaded
    return make
