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
from deepinfer_core.models.layers.packed import Stored, checkpoint_shares, checkpoint_views
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.ops.table import OpTable
from deepinfer_core.weights.dummy import fill_dummy
from deepinfer_core.weights.quant.schemes import keep_codes
from deepinfer_core.weights.shares import read_share, whole_tensors
from deepinfer_core.weights.strict import check_names

if TYPE_CHECKING:
    from deepinfer_core.models.causal import CausalModel
    from deepinfer_core.weights.checkpoint import Checkpoint
    from deepinfer_core.weights.model_info import ModelInfo

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
        ops: not frozen; freeze it afterwards. Its mesh says what share the layers hold.
        dtype: `float32`, `bfloat16` or `float16`, of weights and activations.
        registry: with the models of plugins; default: the built-in ones.
        kv_format: what the caches hold, as in `cache.kv_format`.
        decoder_replay: as in `cache.decoder_replay`.

    Raises:
        ConfigError: the model's caches cannot hold that, it has no decoder to replay, or its sizes
            cannot be divided among the ranks of the mesh.
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

    Blocks until everything is read. Nothing is allocated when names or shapes do not fit. Of
    tensors that a mesh divides only the model's share is read.

    Args:
        model: or a drafter beside one, which has tensors of its own.
        vocabulary: for models that compute with the text of tokens; without it they cannot run.

    Raises:
        ModelLoadError: names are missing, unexpected or mismatched, a file cannot be read, or the
            vocabulary is not the model's.
    """
    if vocabulary is not None and isinstance(model, ReadsVocabulary):
        model.read_vocabulary(vocabulary)
    wanted, shares = checkpoint_views(model), checkpoint_shares(model)
    source = checkpoint.source
    names: list[str] = []
    if source is not None:
        source = keep_codes(source, wanted)
        whole = whole_tensors(wanted, shares)
        names = check_names(whole, source.entries, model.is_redundant, checkpoint.info.path)
    model.to_empty(device=device)
    views = checkpoint_views(model)
    if source is None:
        fill_dummy(views, shares, progress=progress)
    else:
        for name in names:
            read_share(source, name, shares.get(name), views[name])
            if progress is not None:
                progress(name, views[name].nbytes)
    views.clear()  # they would keep what a kernel lays out anew
    for module in model.modules():
        if isinstance(module, Linear):
            module.prepare()
