"""DeepInfer: a small, readable inference engine for large language models.

The public names, resolved when they are first used, so that importing the package imports
neither torch nor any plugin.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer_core.config import EngineConfig
    from deepinfer_core.errors import (
        ConfigError,
        DeepInferError,
        DeviceLostError,
        EngineError,
        GrammarError,
        IntegrityError,
        ModelLoadError,
        OutOfDeviceMemoryError,
        PlatformError,
        PluginError,
        PromptTooLongError,
        RequestError,
        UnsupportedOpError,
        UnsupportedSamplingError,
    )
    from deepinfer_core.llm import LLM
    from deepinfer_core.outputs import RequestOutput
    from deepinfer_core.plugin_api.markers import hookimpl
    from deepinfer_core.sampling_params import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "ConfigError",
    "DeepInferError",
    "DeviceLostError",
    "EngineConfig",
    "EngineError",
    "GrammarError",
    "IntegrityError",
    "ModelLoadError",
    "OutOfDeviceMemoryError",
    "PlatformError",
    "PluginError",
    "PromptTooLongError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "UnsupportedOpError",
    "UnsupportedSamplingError",
    "hookimpl",
]

_MODULES = {
    "LLM": "llm",
    "EngineConfig": "config",
    "RequestOutput": "outputs",
    "SamplingParams": "sampling_params",
    "hookimpl": "plugin_api.markers",
}
"""Public name -> module that defines it; all others are errors."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
