"""An `LLM` on an engine with scripted tokens."""

import pytest
from deepinfer_core.llm import LLM
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.fake_engine import FakeEngine
from deepinfer_core.testing.fake_recipe import FakeRecipePlugin


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def host():
    return PluginHost(load_entry_points=False)


@pytest.fixture
def recipe(host):
    """Let a recipe encode the conversations and read the answers."""
    host.register(FakeRecipePlugin(), name="fake")


@pytest.fixture
def llm(engine, host, monkeypatch):
    monkeypatch.setattr(
        "deepinfer_core.faces.setup.Engine.from_config", lambda config, host: engine
    )
    with LLM("fake", host=host, max_num_seqs=8) as llm:
        yield llm


@pytest.fixture
def say(engine):
    """Make the engine answer every prompt with this text."""

    def say(text):
        ids = engine.tokenizer.encode(text)
        engine._reply = lambda prompt, index: ids

    return say
