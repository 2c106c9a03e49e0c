"""Selection for a whole model without its weights, behind `deepinfer kernels explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer_core.config import EngineConfig
from deepinfer_core.engine_setup import bind_model, resolve_dtype
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.ops.registry import OpChoice
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling.sampler import Sampler
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
    checkpoint = open_checkpoint(config.model.model, load_format="dummy", registry=registry)
    dtype = resolve_dtype(config.model, checkpoint.info)
    model, ops = bind_model(
        checkpoint,
        dtype,
        config=config.device,
        device=device,
        host=host,
        registry=registry,
        cache=config.cache,
        quantization=config.model.quantization,
    )
    # The sampler binds for itself; its state, for one row, is small enough to be made for that.
    Sampler(ops, max_num_seqs=1, vocab_size=model.vocab_size)
    return Explanation(
        checkpoint.info.architecture, dtype, f"{device.kind}:{device.index}", tuple(ops.choices())
    )
