"""The public surface is a list, and this is the list."""

import inspect

import deepinfer_core
import pytest
from deepinfer_core import errors, plugin_api

CORE = {
    "LLM", "SamplingParams", "EngineConfig", "RequestOutput", "hookimpl",
    "DeepInferError", "ConfigError", "RequestError", "PromptTooLongError",
    "UnsupportedSamplingError", "GrammarError", "PluginError", "ModelLoadError", "PlatformError",
    "UnsupportedOpError", "OutOfDeviceMemoryError", "EngineError", "IntegrityError",
    "DeviceLostError",
}  # fmt: skip

PLUGIN_API_1_0 = {
    "API_VERSION", "FEATURES", "PROJECT_NAME", "AnswerText", "Caps", "CapturedGraph", "CommandSpec",
    "DeviceEvent", "DeviceInfo", "DeviceRuntime", "EncodedChat", "GrammarBackendSpec", "HostInfo",
    "Issue", "KVConnectorSpec", "KVLayoutSpec", "KernelPolicy", "KernelSpec", "MeasuresMemory",
    "ModelFacts", "ModelSpec", "Numerics", "PluginInfo", "Problem", "ProposerSpec",
    "QuantSchemeSpec",
    "ReadsImages", "Reason", "ReasoningText", "Recipe", "RecipeSpec", "ReplyEvent", "ReplyParser",
    "RgbImage", "StageSpec", "StatLoggerSpec", "TargetRecord", "ToolCallArguments", "ToolCallStart",
    "hookimpl", "load_target", "range_problem", "target_problem",
}  # fmt: skip


def test_core_exports_exactly_the_list():
    assert set(deepinfer_core.__all__) == CORE
    assert len(deepinfer_core.__all__) == len(CORE)
    assert set(dir(deepinfer_core)) >= CORE


def test_every_public_name_resolves_to_the_thing_of_that_name():
    for name in CORE:
        value = getattr(deepinfer_core, name)
        assert getattr(value, "__name__", name) == name or name == "hookimpl"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="LLMM"):
        getattr(deepinfer_core, "LLMM")  # noqa: B009  # the plain form is a useless expression


def test_every_error_is_public():
    tree = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert tree <= CORE


def test_the_plugin_api_exports_exactly_the_list():
    assert set(plugin_api.__all__) == PLUGIN_API_1_0
    for name in PLUGIN_API_1_0:
        assert hasattr(plugin_api, name)
