"""Architecture name -> model class. A class is imported when it is asked for.

Built-in models are registered exactly as a plugin's are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from deepinfer_core.errors import ModelLoadError, PluginError
from deepinfer_core.models.causal import CausalModel
from deepinfer_core.plugin_api.records import ModelSpec

BUILTIN_MODELS: tuple[ModelSpec, ...] = (
    ModelSpec(
        name="llama",
        target="deepinfer_core.models.llama:Llama",
        architectures=("LlamaForCausalLM",),
    ),
    ModelSpec(
        name="mistral",
        target="deepinfer_core.models.llama:Mistral",
        architectures=("MistralForCausalLM",),
    ),
    ModelSpec(
        name="qwen2",
        target="deepinfer_core.models.qwen:Qwen2",
        architectures=("Qwen2ForCausalLM",),
    ),
    ModelSpec(
        name="qwen3",
        target="deepinfer_core.models.qwen:Qwen3",
        architectures=("Qwen3ForCausalLM",),
    ),
    ModelSpec(
        name="qwen3_moe",
        target="deepinfer_core.models.qwen:Qwen3Moe",
        architectures=("Qwen3MoeForCausalLM",),
    ),
    ModelSpec(
        name="deepseek_v3",
        target="deepinfer_core.models.deepseek_v3:DeepseekV3",
        architectures=("DeepseekV3ForCausalLM",),
    ),
    ModelSpec(
        name="deepseek_v32",
        target="deepinfer_core.models.deepseek_v32:DeepseekV32",
        architectures=("DeepseekV32ForCausalLM",),
    ),
    ModelSpec(
        name="deepseek_v4",
        target="deepinfer_core.models.deepseek_v4:DeepseekV4",
        architectures=("DeepseekV4ForCausalLM",),
    ),
    ModelSpec(
        name="deepseek_v41",
        target="deepinfer_core.models.deepseek_v41:DeepseekV41",
        architectures=("DeepseekV41ForCausalLM",),
    ),
)


class ModelRegistry:
    """What can be loaded.

    Args:
        extra: of plugins. A target is a class made like `CausalModel`: `read_config`, the same
            constructor, `is_redundant`, and the methods of `models.interface.Model`.

    Raises:
        PluginError: two specs claim one architecture.
    """

    def __init__(self, extra: Iterable[ModelSpec] = ()) -> None:
        self._by_architecture: dict[str, ModelSpec] = {}
        for spec in (*BUILTIN_MODELS, *extra):
            for architecture in spec.architectures:
                other = self._by_architecture.setdefault(architecture, spec)
                if other is not spec:
                    raise PluginError(
                        f"models {other.name} ({other.target}) and {spec.name} ({spec.target}) "
                        f"both claim architecture {architecture}; block one of their plugins",
                        hook="deepinfer_models",
                    )

    @property
    def architectures(self) -> list[str]:
        """Known names, sorted."""
        return sorted(self._by_architecture)

    def resolve(self, architecture: str) -> type[CausalModel]:
        """Import the class that computes an architecture.

        Raises:
            ModelLoadError: nobody claims it; lists the known ones.
            PluginError: its class cannot be imported.
        """
        spec = self._by_architecture.get(architecture)
        if spec is None:
            raise ModelLoadError(
                f"architecture {architecture!r} is unknown; "
                f"known: {', '.join(self.architectures)}; a plugin may bring others"
            )
        try:
            return cast(type[CausalModel], spec.load())
        except (ImportError, AttributeError) as error:
            raise PluginError(
                f"model {spec.name}: cannot import {spec.target}: {error}", hook="deepinfer_models"
            ) from error
