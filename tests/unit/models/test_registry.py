from __future__ import annotations

import pytest
from deepinfer_core.errors import ModelLoadError, PluginError
from deepinfer_core.models.llama import Llama
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.plugin_api.records import ModelSpec


def spec(architecture: str, target: str, name: str = "mine") -> ModelSpec:
    return ModelSpec(name=name, target=target, architectures=(architecture,))


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(ModelLoadError) as caught:
        ModelRegistry().resolve("MambaForCausalLM")
    message = str(caught.value)
    assert "'MambaForCausalLM' is unknown" in message
    assert "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM" in message


def test_a_plugin_adds_an_architecture() -> None:
    registry = ModelRegistry([spec("MyForCausalLM", "deepinfer_core.models.llama:Llama")])
    assert registry.resolve("MyForCausalLM") is Llama
    assert "MyForCausalLM" in registry.architectures


def test_two_claims_of_one_architecture_name_both() -> None:
    extra = [spec("MyForCausalLM", "a:A", "one"), spec("MyForCausalLM", "b:B", "two")]
    with pytest.raises(PluginError) as caught:
        ModelRegistry(extra)
    assert "one (a:A) and two (b:B)" in str(caught.value)
    with pytest.raises(PluginError, match="LlamaForCausalLM"):
        ModelRegistry([spec("LlamaForCausalLM", "a:A")])


@pytest.mark.parametrize("target", ["no_such_module:A", "deepinfer_core.models.llama:Lama"])
def test_a_class_that_cannot_be_imported_names_its_target(target: str) -> None:
    registry = ModelRegistry([spec("MyForCausalLM", target)])
    with pytest.raises(PluginError) as caught:
        registry.resolve("MyForCausalLM")
    assert target in str(caught.value)
