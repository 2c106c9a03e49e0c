"""What a configuration asks of a checkpoint, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.models.drafters.build import build_drafter
from deepinfer_core.models.layers.packed import checkpoint_views
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.ops.table import reference_table


def wanted_tensors(fields: Mapping[str, Any]) -> dict[str, Tensor]:
    """What a model and its drafter want from a checkpoint: name -> a tensor on the meta device.

    Raises:
        ModelLoadError: no model here has such a configuration.
    """
    model_class = ModelRegistry().resolve(fields["architectures"][0])
    config = model_class.read_config(RawConfig(fields, "config.json"))
    ops = reference_table()
    with torch.device("meta"):
        model = model_class(config, ops, dtype="float32")
    views = checkpoint_views(model)
    first_cache = len(model.layer_kv())
    drafter = build_drafter(config, ops, dtype="float32", first_cache=first_cache)
    return views if drafter is None else views | checkpoint_views(drafter)
