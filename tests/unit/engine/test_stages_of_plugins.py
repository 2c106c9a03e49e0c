"""A logits stage that a plugin registers reaches the tokens of the requests that name it."""

import sys
from types import ModuleType

import pytest
from deepinfer_core import hookimpl
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.errors import UnsupportedSamplingError
from deepinfer_core.plugin_api import PluginInfo, StageSpec
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams

FAVORITE = 42


def favor(logits, context):
    logits[:, FAVORITE] = 1e4
    return logits


def fail(logits, context):
    raise RuntimeError("this stage has a bug")


class Favoring:
    @hookimpl
    def deepinfer_plugin_info(self):
        return PluginInfo(name="favoring", version="1", vendor="test", api=">=1.0,<2")

    @hookimpl
    def deepinfer_logits_stages(self):
        return [
            StageSpec(name="favor", target="favoring_stage:favor"),
            StageSpec(name="fail", target="favoring_stage:fail"),
        ]


@pytest.fixture
def engine(model_dir, monkeypatch):
    module = ModuleType("favoring_stage")
    module.favor, module.fail = favor, fail
    monkeypatch.setitem(sys.modules, "favoring_stage", module)
    host = PluginHost(load_entry_points=False)
    host.register(Favoring(), name="favoring")
    config = EngineConfig.from_flat(str(model_dir), dtype="float32", num_blocks=50)
    return Engine.from_config(config, host)


def test_only_requests_that_name_a_stage_see_it(engine):
    params = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
    with_stage = engine.add([5, 6], SamplingParams(**params, logits_stages=("favor",)))[0]
    without = engine.add([5, 6], SamplingParams(**params))[0]
    broken = engine.add([5, 6], SamplingParams(**params, logits_stages=("fail",)))[0]
    while engine.has_unfinished:
        engine.advance()
    assert with_stage.output_token_ids == [FAVORITE] * 4
    assert without.finish_reason == "length"
    assert FAVORITE not in without.output_token_ids
    assert broken.finish_reason == "error"
    assert "this stage has a bug" in str(broken.error)


def test_an_unknown_stage_is_refused_with_the_known_ones(engine):
    with pytest.raises(UnsupportedSamplingError, match="unknown absent; known: fail, favor"):
        engine.add([5, 6], SamplingParams(logits_stages=("absent",)))
