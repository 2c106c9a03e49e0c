"""Proposers on the device: the drafter that a checkpoint has, or a small model beside the target.

Each is the target of a `ProposerSpec` with `runs_on="device"`: a function from a `DrafterSetup` to
a `Drafter` with its weights in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deepinfer_core.errors import ConfigError
from deepinfer_core.models.coded import keep_stored_codes
from deepinfer_core.models.drafters.build import build_drafter, drafter_name
from deepinfer_core.models.drafters.draft_model import DraftModel
from deepinfer_core.models.drafters.dspark import Dspark
from deepinfer_core.models.drafters.interface import Drafter, DraftTarget
from deepinfer_core.models.drafters.mtp import Mtp
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.text.loading import load_tokenizer
from deepinfer_core.weights.checkpoint import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    from deepinfer_core.config import EngineConfig
    from deepinfer_core.plugins import PluginHost
    from deepinfer_core.speculative.choose import DrafterSetup


def own_proposer(config: EngineConfig, host: PluginHost) -> str | None:
    """The name of the drafter that the configured checkpoint has; None: it has none."""
    checkpoint = open_checkpoint(
        config.model.model,
        load_format=config.model.load_format,
        revision=config.model.revision,
        registry=ModelRegistry(host.models()),
    )
    return drafter_name(checkpoint.info.config)


def load_mtp(setup: DrafterSetup) -> Drafter:
    """The layer of a checkpoint that predicts a second token, chained.

    Raises:
        ConfigError: the checkpoint has none.
    """
    return _load_own(setup, lambda drafter: isinstance(drafter, Mtp), "mtp")


def load_dspark(setup: DrafterSetup) -> Drafter:
    """The DSpark stages of a checkpoint.

    Raises:
        ConfigError: the checkpoint has none.
    """
    return _load_own(setup, lambda drafter: isinstance(drafter, Dspark), "dspark")


def load_draft_model(setup: DrafterSetup) -> Drafter:
    """A second model with the same tokenizer.

    Raises:
        ConfigError: none is named, or its tokens are others.
        ModelLoadError: it cannot be read.
    """
    if setup.draft_model is None:
        raise ConfigError(
            "the proposer draft_model needs a second model",
            field="speculative.draft_model",
            allowed="a directory or GGUF file of a small model with the same tokenizer",
        )
    checkpoint = open_checkpoint(setup.draft_model, registry=setup.registry)
    _check_tokens(setup, checkpoint)
    model = build_model(checkpoint.info, setup.ops, dtype=setup.dtype, registry=setup.registry)
    drafter = DraftModel(
        model,
        vocab_size=setup.target.vocab_size,
        first_cache=len(setup.target.layer_kv()),
    )
    keep_stored_codes(model, checkpoint, setup.ops, setup.quantization)
    load_weights(model, checkpoint, device=setup.device, vocabulary=setup.tokenizer)
    return drafter


def _load_own(
    setup: DrafterSetup, is_wanted: Callable[[Drafter | None], bool], name: str
) -> Drafter:
    target = setup.target
    drafter = None
    if isinstance(target, DraftTarget):
        first_cache = len(target.layer_kv())
        drafter = build_drafter(
            target.config, setup.ops, dtype=setup.dtype, first_cache=first_cache
        )
    if drafter is None or not is_wanted(drafter):
        has = "none" if drafter is None else type(drafter).__name__
        raise ConfigError(
            f"{setup.checkpoint.info.path} has no drafter of this kind; it has {has}",
            field="speculative.proposer",
            value=name,
        )
    keep_stored_codes(drafter, setup.checkpoint, setup.ops, setup.quantization)
    load_weights(drafter, setup.checkpoint, device=setup.device)
    return drafter


def _check_tokens(setup: DrafterSetup, checkpoint: Checkpoint) -> None:
    """Whether every id that both models have stands for the same token."""
    source = checkpoint.info.tokenizer_source
    ours, theirs = setup.tokenizer, load_tokenizer(source.path, kind=source.kind)
    count = min(setup.target.vocab_size, checkpoint.info.vocab_size)
    for token_id in range(count):
        mine, other = ours.id_to_token(token_id), theirs.id_to_token(token_id)
        if mine != other and mine is not None and other is not None:
            raise ConfigError(
                f"the draft model has another tokenizer: its token {token_id} is {other!r}, the "
                f"target's is {mine!r}",
                field="speculative.draft_model",
                value=setup.draft_model,
            )
