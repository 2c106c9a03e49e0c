"""An engine over random weights, for the scripts that measure: from a `config.json` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deepinfer_cuda.plugin
from deepinfer_core.bench.open_engine import Opened, open_engine, protocol_config
from deepinfer_core.config_sources import resolve_config
from deepinfer_core.plugins import PluginHost


def start_engine(directory: Path, **fields: Any) -> Opened:
    """Load what the directory's `config.json` describes; as the protocol of `deepinfer bench`."""
    host = PluginHost(load_entry_points=False)
    host.register(deepinfer_cuda.plugin, name="cuda")
    flags = {"model": str(directory), "load_format": "dummy", "dtype": "bfloat16", **fields}
    return open_engine(protocol_config(resolve_config(flags=flags, env={})), host)
