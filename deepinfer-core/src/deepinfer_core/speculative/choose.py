"""From the name of a proposer to one that can be asked."""

from __future__ import annotations

from collections.abc import Callable

from deepinfer_core.config import SpeculativeConfig
from deepinfer_core.errors import ConfigError, PluginError
from deepinfer_core.plugin_api import ProposerSpec
from deepinfer_core.plugin_api.proposer import Proposer
from deepinfer_core.plugins import PluginHost
from deepinfer_core.scheduling.drafting import DraftSource
from deepinfer_core.speculative.budget import StepCosts

NO_PROPOSER = "none"


def make_draft_source(
    config: SpeculativeConfig,
    proposer: Proposer | None,
    *,
    vocab_size: int,
    measure: Callable[[], StepCosts],
) -> DraftSource | None:
    """Where the scheduler gets drafts from; None if there are none.

    Args:
        measure: tells what steps cost; takes a while, and is only called for the guard.
    """
    if proposer is None:
        return None
    return DraftSource(
        proposer,
        num_drafts=config.num_drafts,
        vocab_size=vocab_size,
        costs=measure() if config.draft_guard else None,
    )


def load_proposer(config: SpeculativeConfig, host: PluginHost) -> Proposer | None:
    """The proposer that runs on the host; None if nobody guesses, or the device does.

    Raises:
        ConfigError: nobody is called so.
        PluginError: the proposer cannot be made.
    """
    name = config.proposer
    if name == NO_PROPOSER:
        return None
    specs = {spec.name: spec for spec in host.targets(ProposerSpec)}
    if name not in specs:
        raise ConfigError(
            "nobody proposes under this name",
            field="speculative.proposer",
            value=name,
            allowed=", ".join([NO_PROPOSER, *sorted(specs)]),
        )
    try:
        proposer: Proposer = specs[name].load()()
    except Exception as error:  # a plugin border
        raise PluginError(
            f"proposer {name} cannot be made: {type(error).__name__}: {error}"
        ) from error
    return proposer
