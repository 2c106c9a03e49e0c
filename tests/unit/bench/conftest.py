"""A tiny random model with its tokenizer, opened once for these tests."""

import pytest
from deepinfer_core.llm import LLM
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.tiny import write_tiny_checkpoint


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("bench") / "llama", "llama")


@pytest.fixture(scope="session")
def llm(model_dir):
    host = PluginHost(load_entry_points=False)
    with LLM(model_dir, host=host, dtype="float32", num_blocks=200, max_num_seqs=8) as llm:
        yield llm
