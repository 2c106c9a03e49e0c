"""A frontend on an engine with scripted tokens."""

import pytest
from deepinfer_core.faces.chat import ChatEncoder
from deepinfer_core.faces.encoder import Encoder
from deepinfer_core.faces.frontend import Frontend
from deepinfer_core.testing.fake_engine import FakeEngine
from deepinfer_core.text.template import ChatTemplate


@pytest.fixture(params=["overlap", "plain", "several tokens"])
def engine(request):
    num_tokens = 3 if request.param == "several tokens" else 1
    return FakeEngine(overlap=request.param != "plain", tokens_per_step=num_tokens)


@pytest.fixture
def frontend(engine):
    frontend = Frontend(engine, engine.tokenizer)
    yield frontend
    frontend.loop.close()


@pytest.fixture
def encoder(engine):
    template = ChatTemplate(engine.tokenizer.chat_templates)
    return Encoder(engine.tokenizer, ChatEncoder(engine.tokenizer, template=template))


@pytest.fixture
def say(engine):
    """Make the engine answer every prompt with this text."""

    def say(text):
        ids = engine.tokenizer.encode(text)
        engine._reply = lambda prompt, index: ids
        return ids

    return say
