"""Which layers of a model keep the codes of a quantised checkpoint, and which get numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from torch import nn

from deepinfer_core.errors import UnsupportedOpError
from deepinfer_core.models.layers.packed import HoldsCodes, module_views
from deepinfer_core.ops.table import OpTable
from deepinfer_core.plugin_api.kernel import Problem
from deepinfer_core.weights.checkpoint import Checkpoint
from deepinfer_core.weights.model_info import ModelInfo
from deepinfer_core.weights.quant.released import ReleasedFormat
from deepinfer_core.weights.quant.source import QuantizedSource

Quantization = Literal["auto", "keep", "dequantize"]

ROUNDED_BLOCK = (128, 128)
"""Of weights, in checkpoints whose activations were rounded in groups as long."""


def keep_stored_codes(
    model: nn.Module, checkpoint: Checkpoint, ops: OpTable, quantization: Quantization
) -> list[str]:
    """Let layers hold codes with scales where the checkpoint has such.

    A layer that fuses several matrices keeps codes if all are of one scheme and none ends within
    a block of scales; others are decoded while they are loaded.

    Args:
        model: on the meta device, not loaded yet.
        ops: not frozen.
        quantization: `auto` keeps codes where a kernel of a plugin multiplies with them, `keep`
            wherever it can be done, `dequantize` nowhere.

    Returns:
        paths of the layers that keep codes.
    """
    if quantization == "dequantize":
        return []
    kept_as = _stored_schemes(checkpoint)
    permissions = _permissions(checkpoint.info)
    stored_name: Callable[[str], str] = getattr(model, "stored_name", str)
    kept = []
    for path, module in model.named_modules():
        names = [name for name, _ in module_views(path, module) if name.endswith(".weight")]
        if not isinstance(module, HoldsCodes):
            continue
        schemes = {kept_as(stored_name(name)) for name in names}
        scheme = schemes.pop() if len(schemes) == 1 else None
        if scheme is None or not module.takes_codes(scheme):
            continue
        problem = module.coded_problem(scheme)
        problem = replace(problem, features=problem.features | permissions)
        if quantization == "keep" or _is_multiplied(ops, problem):
            module.keep_codes(ops, problem)
            kept.append(path)
    return kept


def _permissions(info: ModelInfo) -> frozenset[str]:
    """What the checkpoint lets kernels do: models trained in FP8 bear rounded rows."""
    quantization = info.raw_config.get("quantization_config") or {}
    is_trained_so = quantization.get("activation_scheme") == "dynamic"
    if is_trained_so and info.fp8_block_size == ROUNDED_BLOCK:
        return frozenset({"rounded_rows"})
    return frozenset()


def _is_multiplied(ops: OpTable, problem: Problem) -> bool:
    try:
        return ops.beats_reference(problem)
    except UnsupportedOpError:  # as when the provider named for a whole family has no such kernel
        return False


def _stored_schemes(checkpoint: Checkpoint) -> Callable[[str], str | None]:
    if isinstance(checkpoint.source, QuantizedSource):
        return checkpoint.source.kept_as
    if checkpoint.source is None:  # random weights come in the formats of released ones
        return ReleasedFormat.of_config(checkpoint.info.raw_config).kept_as
    return lambda name: None
