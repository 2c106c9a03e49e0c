"""Opens an `LLM` for a command. The import of torch happens here, when a command really runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.cli.render import stderr
from deepinfer_core.config_sources import ResolvedConfig
from deepinfer_core.plugin_api import load_target

if TYPE_CHECKING:
    from deepinfer_core.llm import LLM


def open_llm(engine: ResolvedConfig) -> LLM:
    """Load the model, with a sign of life on a terminal. Blocks until it is ready.

    Raises:
        ConfigError, ModelLoadError, PlatformError, PluginError: it cannot be loaded.
    """
    with stderr().status(f"loading {engine.config.model.model}"):
        llm: LLM = load_target("deepinfer_core.llm:LLM")(config=engine.config)
    return llm
