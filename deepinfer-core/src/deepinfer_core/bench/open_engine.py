"""`open_engine`: a model for a benchmark, even if there is only its `config.json`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deepinfer_core.config import EngineConfig
from deepinfer_core.config_sources import ResolvedConfig
from deepinfer_core.engine import Engine
from deepinfer_core.plugin_api.device import DeviceRuntime
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.tiny_tokenizer import write_tokenizer

PROTOCOL_FIELDS: dict[str, Any] = {
    "cache.prefix_caching": False,
    "cache.memory_fraction": 0.85,
    "scheduler.max_num_batched_tokens": 16384,
    "scheduler.max_num_seqs": 256,
}
"""What engines that are compared are run with, wherever nothing else was asked for."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine, and what a benchmark wants to know besides."""

    engine: Engine
    model: Any
    runtime: DeviceRuntime
    device: torch.device
    facts: dict[str, Any]
    """For a report."""


def open_engine(config: EngineConfig, host: PluginHost | None = None) -> Opened:
    """Load a model. Random weights need no tokenizer beside the configuration.

    Args:
        host: plugins already loaded; default: those that the configuration allows.

    Raises:
        ConfigError, ModelLoadError, PlatformError, PluginError: as `Engine.from_config`.
    """
    host = host or PluginHost(allow=config.plugin.plugins, block=config.plugin.block)
    runtime = host.device_runtime(host.find_device(config.device.kind))
    with tempfile.TemporaryDirectory() as directory:
        engine = Engine.from_config(_with_tokenizer(config, Path(directory)), host)
    model: Any = engine.runner.model
    facts = {
        "name": Path(config.model.model).name,
        "architecture": engine.info.architecture,
        "dtype": str(model.dtype).removeprefix("torch."),
        "num_layers": engine.info.config.num_layers,
        "random_weights": config.model.load_format == "dummy",
    }
    return Opened(engine, model, runtime, torch.device(runtime.torch_device), facts)


def protocol_config(resolved: ResolvedConfig) -> EngineConfig:
    """The configuration, with the protocol's values where nobody gave any."""
    tree = resolved.config.model_dump()
    for path, value in PROTOCOL_FIELDS.items():
        section, _, name = path.partition(".")
        if resolved.sources[path] == "default":
            tree[section][name] = value
    return EngineConfig.from_tree(tree)


def _with_tokenizer(config: EngineConfig, directory: Path) -> EngineConfig:
    source = Path(config.model.model)
    is_bare = source.is_dir() and not (source / "tokenizer.json").exists()
    if config.model.load_format != "dummy" or config.model.tokenizer is not None or not is_bare:
        return config
    write_tokenizer(directory)
    tree = config.model_dump()
    tree["model"]["tokenizer"] = str(directory)
    return EngineConfig.from_tree(tree)
