"""Opens an engine for the faces: configuration, plugins, engine, encoder."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.errors import ConfigError
from deepinfer_core.faces.encoder import Encoder, make_encoder
from deepinfer_core.faces.frontend import Frontend
from deepinfer_core.plugins import PluginHost

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """What an `LLM` is made of."""

    config: EngineConfig
    engine: Engine
    encoder: Encoder
    frontend: Frontend


def open_engine(
    model: str | Path | None,
    config: EngineConfig | None,
    host: PluginHost | None,
    fields: Mapping[str, Any],
) -> OpenedEngine:
    """Build everything; blocks until the weights are loaded.

    Raises:
        ConfigError, ModelLoadError, PlatformError, PluginError: it cannot be built.
    """
    if (model is None) == (config is None) or (config is not None and fields):
        raise ConfigError("give either a model, with settings by name, or config=")
    if config is None:
        config = EngineConfig.from_flat(str(model), **fields)
    if host is None:
        host = PluginHost(allow=config.plugin.plugins, block=config.plugin.block)
    begun_s = time.perf_counter()
    engine = Engine.from_config(config, host)
    encoder = make_encoder(
        config.model,
        engine.tokenizer,
        host=host,
        architecture=engine.info.architecture,
        vision=engine.limits.vision,
    )
    logger.info("%s is ready after %.1f s", config.model.model, time.perf_counter() - begun_s)
    return OpenedEngine(config, engine, encoder, Frontend(engine, engine.tokenizer))
