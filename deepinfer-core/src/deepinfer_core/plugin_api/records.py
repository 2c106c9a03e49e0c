"""The typed records that hooks return, besides `KernelSpec` and `DeviceInfo`.

Plain frozen data: a plugin builds them without importing anything heavy, and the host checks them
when it collects them. A record with a `target` names its implementation as `module:attribute`;
it is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from deepinfer_core.plugin_api.target import load_target


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What a plugin says of itself, before anything of its vendor is imported."""

    name: str
    version: str
    vendor: str
    api: str
    """The range of plugin API versions it works with, such as `>=1.0,<2`."""


@dataclass(frozen=True, slots=True)
class Issue:
    """Something about a configuration that a plugin wants to say before construction."""

    severity: Literal["error", "warning", "note"]
    path: str
    """Dotted path of the field, such as `scheduler.max_num_seqs`."""
    message: str
    suggestion: str = ""


@dataclass(frozen=True, slots=True)
class KernelPolicy:
    """A preference among kernels, for one model on one device.

    Ranks below a person's own choice and above the kernels' priorities. Providers that cannot
    serve are passed over.
    """

    op: str
    """`attn.paged`, `attn.*` or `*`."""
    providers: tuple[str, ...]
    """In order of preference."""
    reason: str
    """Shown by `deepinfer kernels explain`."""
    role: str = "*"
    """A pattern over the layer role, such as `mlp.*`."""


class ModelFacts(Protocol):
    """What a policy may know of the model that is about to be built."""

    @property
    def architecture(self) -> str: ...

    @property
    def dtype(self) -> str:
        """The checkpoint's own."""
        ...

    @property
    def raw_config(self) -> Mapping[str, Any]:
        """The checkpoint's own fields, under their Hugging Face names."""
        ...


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """Base of the records that name something importable."""

    name: str
    target: str
    """`module:attribute`"""

    def load(self) -> Any:
        """Import the target.

        Raises:
            ImportError, AttributeError: there is no such thing.
        """
        return load_target(self.target)


@dataclass(frozen=True, slots=True)
class ModelSpec(TargetRecord):
    """A model class for architectures that core does not know."""

    architectures: tuple[str, ...] = ()
    """Names as in `config.json`."""


@dataclass(frozen=True, slots=True)
class RecipeSpec(TargetRecord):
    """A prompt encoder and output parser for a family of models."""

    architectures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandSpec(TargetRecord):
    """A subcommand of `deepinfer`; the target is a typer application or a function."""

    help: str = ""


@dataclass(frozen=True, slots=True)
class StageSpec(TargetRecord):
    """A logits stage that requests name in `SamplingParams.logits_stages`.

    The target is a function `stage(logits, context) -> logits`, called in every step with the rows
    of the requests that name it: [n, V] float32, after the penalties and before the temperature.
    `deepinfer_core.sampling.custom` documents its duties and the context.
    """


@dataclass(frozen=True, slots=True)
class QuantSchemeSpec(TargetRecord):
    """A way of storing weights and of computing with them."""


@dataclass(frozen=True, slots=True)
class ProposerSpec(TargetRecord):
    """A maker of draft tokens."""

    runs_on: Literal["device", "host"] = "host"
    """On the host, `target` makes a `plugin_api.proposer.Proposer`. On the device it is a function
    from a `speculative.choose.DrafterSetup` to a `models.drafters.interface.Drafter` with its
    weights in place; these two may still change within an API version."""


@dataclass(frozen=True, slots=True)
class GrammarBackendSpec(TargetRecord):
    """A compiler and matcher for structured output."""


@dataclass(frozen=True, slots=True)
class KVConnectorSpec(TargetRecord):
    """A tier of the KV cache below the device."""


@dataclass(frozen=True, slots=True)
class StatLoggerSpec(TargetRecord):
    """A receiver of the engine's metrics."""


@dataclass(frozen=True, slots=True)
class KVLayoutSpec:
    """A variant of the paged cache that a backend's kernels can read."""

    name: str
    group_kinds: tuple[str, ...]
    """Kinds of layout group, such as `full` and `window`."""
    block_sizes: tuple[int, ...]
    kv_dtypes: tuple[str, ...]
