"""How much cache a model needs, from its configuration alone. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_core.kv.context_bytes import CacheUse, cache_uses
from deepinfer_core.models.loader import build_model
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.ops.table import reference_table
from deepinfer_core.plugins import PluginHost
from deepinfer_core.weights.checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True)
class ModelCaches:
    """The caches of one request."""

    architecture: str
    dtype: str
    kv_format: str
    context: int
    """Tokens."""
    uses: tuple[CacheUse, ...]

    @property
    def bytes_per_token(self) -> float:
        """By which the caches grow with the context."""
        return sum(use.bytes_per_token for use in self.uses)

    @property
    def fixed_bytes(self) -> int:
        """Of full windows, whatever the context."""
        return sum(use.fixed_bytes for use in self.uses)

    @property
    def total_bytes(self) -> int:
        """At the context."""
        return sum(use.bytes_at(self.context) for use in self.uses)


def measure_caches(model: str, context: int | None, kv_format: str) -> ModelCaches:
    """Build a model without weights and ask what it caches.

    Args:
        model: as `model.model`; a directory may hold no more than a `config.json`.
        context: tokens; None: the longest that the model was made for.
        kv_format: as `cache.kv_format`.

    Raises:
        ConfigError, ModelLoadError, PluginError: as the engine would.
    """
    registry = ModelRegistry(PluginHost().models())
    info = open_checkpoint(model, load_format="dummy", registry=registry).info
    # What is cached does not depend on kernels.
    built = build_model(
        info, reference_table(), dtype=info.dtype, registry=registry, kv_format=kv_format
    )
    uses = cache_uses(built.layer_kv(), info.dtype)
    return ModelCaches(
        info.architecture, info.dtype, kv_format, context or info.max_position, tuple(uses)
    )
