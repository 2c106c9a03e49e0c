"""From a checkpoint to a model with its weights in place: build on meta, check, then stream.

Weights exist once: parameters are allocated on the device and each checkpoint tensor is copied
into its place, converted on the way. What a kernel lays out anew exists twice for one matrix at a
time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from deepinfer_core.errors import ConfigError
from deepinfer_core.kv.format import PLAIN, KVFormat
from deepinfer_core.models.interface import ReadsVocabulary, Vocabulary
from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.packed import Stored, checkpoint_views
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.ops.table import OpTable
from deepinfer_core.weights.checkpoint import Checkpoint
from deepinfer_core.weights.dummy import fill_dummy
from deepinfer_core.weights.model_info import ModelInfo
from deepinfer_core.weights.quant.schemes import keep_codes
from deepinfer_core.weights.strict import check_names

if TYPE_CHECKING:
    from deepinfer_core.models.causal import CausalModel

Progress = Callable[[str, int], None]
"""Called with (tensor name, bytes now in place) after each tensor."""


def build_model(
    info: ModelInfo,
    ops: OpTable,
    *,
    dtype: str,
    registry: ModelRegistry | None = None,
    kv_format: str = PLAIN,
    decoder_replay: bool = False,
) -> CausalModel:
    """Construct the model on the meta device: all ops bound, no memory for weights.

    Args:
        ops: not frozen; freeze it afterwards.
        dtype: `float32`, `bfloat16` or `float16`, of weights and activations.
        registry: with the models of plugins; default: the built-in ones.
        kv_format: what the caches hold, as in `cache.kv_format`.
        decoder_replay: as in `cache.decoder_replay`.

    Raises:
        ConfigError: the model's caches cannot hold that, or it has no decoder to replay.
        UnsupportedOpError: no kernel can serve one of the layers.
        ModelLoadError, PluginError: the architecture has no class.
    """
    model_class = (registry or ModelRegistry()).resolve(info.architecture)
    config: Any = info.config
    if kv_format != PLAIN:
        # Classes of plugins need not know of it.
        supported = getattr(model_class, "kv_formats", ())
        config = replace(config, kv_format=KVFormat.parse(kv_format, supported))
    if decoder_replay:
        if not hasattr(config, "decoder_replay"):
            raise ConfigError(
                f"{info.architecture} computes all layers for all tokens",
                field="cache.decoder_replay",
                value=True,
                allowed="false with this model",
            )
        config = replace(config, decoder_replay=True)
    with torch.device("meta"):
        return model_class(config, ops, dtype=dtype).eval()


def load_weights(
    model: Stored,
    checkpoint: Checkpoint,
    *,
    device: torch.device | str,
    vocabulary: Vocabulary | None = None,
    progress: Progress | None = None,
) -> None:
    """Allocate the model's parameters on the device and fill them.

    Blocks until everything is read. Nothing is allocated when names or shapes do not fit.

    Args:
        model: or a drafter beside one, which has tensors of its own.
        vocabulary: for models that compute with the text of tokens; without it they cannot run.

    Raises:
        ModelLoadError: names are missing, unexpected or mismatched, a file cannot be read, or the
            vocabulary is not the model's.
    """
    if vocabulary is not None and isinstance(model, ReadsVocabulary):
        model.read_vocabulary(vocabulary)
    wanted = checkpoint_views(model)
    source = checkpoint.source
    names: list[str] = []
    if source is not None:
        source = keep_codes(source, wanted)
        names = check_names(wanted, source.entries, model.is_redundant, checkpoint.info.path)
    model.to_empty(device=device)
    views = checkpoint_views(model)
    if source is None:
        fill_dummy(views, progress)
    else:
        for name in names:
            source.read_into(name, views[name])
            if progress is not None:
                progress(name, views[name].nbytes)
    views.clear()  # they would keep what a kernel lays out anew
    for module in model.modules():
        if isinstance(module, Linear):
            module.prepare()
