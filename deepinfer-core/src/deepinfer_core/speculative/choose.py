"""From the name of a proposer to one that can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from deepinfer_core.config import SpeculativeConfig
from deepinfer_core.errors import ConfigError, DeepInferError, PluginError
from deepinfer_core.plugin_api import ProposerSpec
from deepinfer_core.plugin_api.proposer import Proposer
from deepinfer_core.plugins import PluginHost
from deepinfer_core.scheduling.drafting import DeviceDrafts, DraftSource, HostDrafts
from deepinfer_core.speculative.budget import DraftCosts, StepCosts

if TYPE_CHECKING:
    import torch

    from deepinfer_core.models.causal import CausalModel
    from deepinfer_core.models.coded import Quantization
    from deepinfer_core.models.drafters.interface import Drafter
    from deepinfer_core.models.registry import ModelRegistry
    from deepinfer_core.ops.table import OpTable
    from deepinfer_core.text.tokenizer import Tokenizer
    from deepinfer_core.weights.checkpoint import Checkpoint

NO_PROPOSER = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSetup:
    """The target and what it was built with; its op table is not frozen yet."""

    target: CausalModel
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    ops: OpTable
    dtype: str
    device: torch.device | str
    registry: ModelRegistry
    quantization: Quantization
    draft_model: str | None
    """As in `speculative.draft_model`."""


class Measurable(Protocol):
    """What tells what steps and drafts cost. It takes a while."""

    def step_costs(self) -> StepCosts: ...

    def draft_costs(self, num_drafts: int) -> DraftCosts: ...


def make_draft_source(
    config: SpeculativeConfig,
    proposer: Proposer | None,
    drafter: Drafter | None,
    *,
    vocab_size: int,
    costs: Measurable,
) -> DraftSource | None:
    """Where the scheduler gets drafts from; None if there are none.

    Args:
        costs: asked for the guard only.
    """
    step_costs = None
    if config.draft_guard and (proposer is not None or drafter is not None):
        step_costs = costs.step_costs()
    if proposer is not None:
        return HostDrafts(
            proposer, num_drafts=config.num_drafts, vocab_size=vocab_size, costs=step_costs
        )
    if drafter is None:
        return None
    count = num_drafts(config, drafter)
    return DeviceDrafts(
        num_drafts=count,
        vocab_size=vocab_size,
        costs=step_costs,
        draft_costs=None if step_costs is None else costs.draft_costs(count),
    )


def num_drafts(config: SpeculativeConfig, drafter: Drafter | None) -> int:
    """Most tokens of one draft: as configured, or as many as the drafter can give."""
    if config.proposer == NO_PROPOSER and drafter is None:
        return 0
    most = None if drafter is None else drafter.max_drafts
    return config.num_drafts if most is None else min(config.num_drafts, most)


def load_guesses(
    config: SpeculativeConfig, host: PluginHost, setup: DrafterSetup
) -> tuple[Proposer | None, Drafter | None]:
    """The proposer that runs on the host, or the drafter that runs on the device; one at most.

    Args:
        setup: what a drafter is made from; its weights are read here.

    Raises:
        ConfigError: nobody is called so, or it does not go with this model.
        ModelLoadError: the weights of a drafter cannot be read.
        PluginError: the proposer cannot be made.
    """
    name = config.proposer
    if name == NO_PROPOSER:
        return None, None
    specs = {spec.name: spec for spec in host.targets(ProposerSpec)}
    if name not in specs:
        raise ConfigError(
            "nobody proposes under this name",
            field="speculative.proposer",
            value=name,
            allowed=", ".join([NO_PROPOSER, *sorted(specs)]),
        )
    spec = specs[name]
    try:
        target = spec.load()
        made = target(setup) if spec.runs_on == "device" else target()
    except DeepInferError:
        raise
    except Exception as error:  # a plugin border
        raise PluginError(
            f"proposer {name} cannot be made: {type(error).__name__}: {error}"
        ) from error
    return (None, made) if spec.runs_on == "device" else (made, None)
