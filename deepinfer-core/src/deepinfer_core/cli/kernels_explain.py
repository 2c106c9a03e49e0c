"""Selection for a whole model without its weights, behind `deepinfer kernels explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer_core.config import EngineConfig
from deepinfer_core.models.loader import build_model
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.ops.registry import OpChoice
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugins import PluginHost
from deepinfer_core.weights.checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would serve a model."""

    architecture: str
    dtype: str
    device: str
    choices: Sequence[OpChoice]
    """One for each distinct problem and role, in the order in which layers bind."""


def explain_model(tree: dict[str, Any], host: PluginHost | None = None) -> Explanation:
    """Build the model on the meta device and return what was selected.

    Args:
        tree: an `EngineConfig` as a nested mapping.
        host: default: all installed plugins.

    Raises:
        ConfigError, ModelLoadError, PluginError, PlatformError: as the engine would.
    """
    config = EngineConfig.from_tree(tree)
    host = host or PluginHost(allow=config.plugin.plugins, block=config.plugin.block)
    device = host.find_device(config.device.kind)
    registry = ModelRegistry(host.models())
    info = open_checkpoint(config.model.model, load_format="dummy", registry=registry).info
    dtype = info.dtype if config.model.dtype == "auto" else config.model.dtype
    ops = make_op_table(
        host.kernels(device),
        device=device,
        overrides=config.device.kernels,
        policies=host.kernel_policies(device, info),
        batch_invariant=config.device.batch_invariant,
        deterministic=config.device.deterministic,
        strict=config.device.strict,
    )
    build_model(info, ops, dtype=dtype, registry=registry)
    return Explanation(
        info.architecture, dtype, f"{device.kind}:{device.index}", tuple(ops.choices())
    )
