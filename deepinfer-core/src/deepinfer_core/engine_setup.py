"""The parts of an engine, made from a configuration: device, op table, model, tokenizer, pool.

Each function takes the section it needs; only `Engine.from_config` sees the whole. Nothing here
writes a derived value back into the configuration.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from deepinfer_core.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from deepinfer_core.errors import ConfigError
from deepinfer_core.models.coded import Quantization, keep_stored_codes
from deepinfer_core.models.loader import Progress, build_model, load_weights
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.ops.table import OpTable, make_op_table, provider_names
from deepinfer_core.plugin_api import DeviceInfo, DeviceRuntime, GrammarBackendSpec
from deepinfer_core.plugins import PluginHost
from deepinfer_core.speculative.choose import DrafterSetup, load_guesses
from deepinfer_core.text.loading import load_tokenizer
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_core.weights.checkpoint import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    from deepinfer_core.models.causal import CausalModel
    from deepinfer_core.models.drafters.interface import Drafter
    from deepinfer_core.plugin_api.proposer import Proposer
    from deepinfer_core.weights.model_info import ModelInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in place on its device, the ops it is bound to, and its tokenizer."""

    model: CausalModel
    info: ModelInfo
    ops: OpTable
    runtime: DeviceRuntime
    tokenizer: Tokenizer
    proposer: Proposer | None = None
    """Guesses tokens on the host; None: nobody does."""
    drafter: Drafter | None = None
    """Guesses tokens on the device."""
    grammar_backends: tuple[GrammarBackendSpec, ...] = ()
    """What can compile forms of answers, none of it imported yet."""


def choose_device(config: EngineConfig, host: PluginHost) -> tuple[DeviceInfo, DeviceRuntime]:
    """Find the device and its runtime, and let plugins object to the configuration.

    Raises:
        ConfigError: a plugin refuses the configuration.
        PlatformError, PluginError: the device is not there, or its plugin failed.
    """
    device = host.find_device(config.device.kind)
    for issue in host.check_config(config, device):
        if issue.severity == "error":
            raise ConfigError(f"{issue.message}; {issue.suggestion}", field=issue.path)
        logger.log(
            logging.WARNING if issue.severity == "warning" else logging.INFO,
            "%s: %s; %s", issue.path, issue.message, issue.suggestion,
        )  # fmt: skip
    runtime = host.device_runtime(device)
    runtime.activate()
    if config.device.num_threads is not None:
        torch.set_num_threads(config.device.num_threads)
    return device, runtime


def bind_model(
    checkpoint: Checkpoint,
    dtype: str,
    *,
    config: DeviceConfig,
    device: DeviceInfo,
    host: PluginHost,
    registry: ModelRegistry,
    cache: CacheConfig,
    quantization: Quantization = "auto",
) -> tuple[CausalModel, OpTable]:
    """Build the model on the meta device, all ops selected; costs no memory for weights.

    Raises:
        UnsupportedOpError, ConfigError, PluginError: no kernel fits, or a named one cannot serve.
    """
    named = [name for value in config.kernels.values() for name in provider_names(value)]
    ops = make_op_table(
        host.kernels(device, named_providers=named),
        device=device,
        overrides=config.kernels,
        policies=host.kernel_policies(device, checkpoint.info),
        batch_invariant=config.batch_invariant,
        deterministic=config.deterministic,
        strict=config.strict,
    )
    builds = {record.name: record.build for record in host.plugins}
    ops.remember_failures(config.cache_dir, {**builds, "torch": torch.__version__})
    if cache.decoder_replay and not cache.bounded_replay:
        raise ConfigError(
            "windows of late layers would have gaps that prefix hits cannot bridge",
            field="cache.decoder_replay",
            value=True,
            allowed="only with cache.bounded_replay",
        )
    model = build_model(
        checkpoint.info,
        ops,
        dtype=dtype,
        registry=registry,
        kv_format=cache.kv_format,
        decoder_replay=cache.decoder_replay,
    )
    keep_stored_codes(model, checkpoint, ops, quantization)
    return model, ops


def load_model(
    config: EngineConfig, host: PluginHost, *, progress: Progress | None = None
) -> LoadedModel:
    """Open the checkpoint, choose device and kernels, and stream the weights into place.

    Blocks until everything is read.
    """
    device, runtime = choose_device(config, host)
    registry = ModelRegistry(host.models())
    checkpoint = open_checkpoint(
        config.model.model,
        load_format=config.model.load_format,
        revision=config.model.revision,
        registry=registry,
    )
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
    tokenizer = resolve_tokenizer(config.model, checkpoint.info)
    place = runtime.torch_device
    load_weights(model, checkpoint, device=place, vocabulary=tokenizer, progress=progress)
    drafter_setup = DrafterSetup(
        target=model,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        ops=ops,
        dtype=dtype,
        device=place,
        registry=registry,
        quantization=config.model.quantization,
        draft_model=config.speculative.draft_model,
    )
    proposer, drafter = load_guesses(config.speculative, host, drafter_setup)
    return LoadedModel(
        model,
        checkpoint.info,
        ops,
        runtime,
        tokenizer,
        proposer=proposer,
        drafter=drafter,
        grammar_backends=tuple(host.targets(GrammarBackendSpec)),
    )


def resolve_dtype(config: ModelConfig, info: ModelInfo) -> str:
    """`float32`, `bfloat16` or `float16`."""
    return info.dtype if config.dtype == "auto" else config.dtype


def resolve_max_model_len(config: ModelConfig, info: ModelInfo) -> int:
    """The longest prompt plus output, in tokens.

    Raises:
        ConfigError: more than the model was made for.
    """
    if config.max_model_len is None:
        return info.max_position
    if config.max_model_len > info.max_position:
        raise ConfigError(
            "longer than the model allows",
            field="model.max_model_len",
            value=config.max_model_len,
            allowed=f"1 to {info.max_position}",
        )
    return config.max_model_len


def resolve_tokenizer(config: ModelConfig, info: ModelInfo) -> Tokenizer:
    """The tokenizer that was named, or the checkpoint's own."""
    if config.tokenizer is not None:
        return load_tokenizer(config.tokenizer)
    return load_tokenizer(info.tokenizer_source.path, kind=info.tokenizer_source.kind)


def sampling_defaults(config: ModelConfig, info: ModelInfo) -> dict[str, Any]:
    """Values for sampling parameters that a request leaves open."""
    return dict(info.generation_defaults) if config.generation_config == "auto" else {}


def load_logits_stages(host: PluginHost) -> dict[str, Any]:
    """Custom logits stages by name; a stage that cannot be imported is a `PluginError`."""
    return {spec.name: spec.load() for spec in host.logits_stages()}
