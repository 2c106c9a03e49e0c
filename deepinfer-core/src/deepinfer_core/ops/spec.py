"""`OpSpec` and the `@op` decorator: what an op is called, takes and gives.

Owns the table of known ops, `OP_SPECS`. Knows no implementation: a spec is a signature with a
docstring, and names its reference by string. Torch-free, so that plugins can read specs at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from deepinfer_core.plugin_api.kernel import FEATURES

F = TypeVar("F", bound=Callable[..., Any])
RunsIn = Literal["all_steps", "chunks", "few_steps"]
"""`chunks`: where some request has several tokens in the step."""

REFERENCE_PACKAGE = "deepinfer_core.ops.reference"

UNIVERSAL_FEATURES: frozenset[str] = frozenset(
    {"batch_invariant", "deterministic", "graph_safe", "empty_ok"}
)
"""Properties that a kernel of any op may claim; never written into a spec."""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One op: the contract between models and providers."""

    name: str
    """`family.op`, such as `norm.rms`."""
    major: int
    """Raised when an old implementation would compute something else."""
    tier: int
    """0 boots any dense or MoE model; 1 and 2 are for particular architectures."""
    signature: inspect.Signature
    """Annotations are strings; equal to the reference's."""
    doc: str
    """Shapes, dtypes, laws."""
    features: frozenset[str] = frozenset()
    """What a caller may ask for beyond the plain op; each must be in a kernel's `caps.features`."""
    runs_in: RunsIn = "all_steps"
    """Steps that call it. A reference kernel on an accelerator is worth a warning, except in few;
    what runs in chunks only is never recorded."""
    previous: str | None = None
    """`module:attribute` of `adapt(fn)`, which makes a kernel of major - 1 serve this major."""
    weight: str | None = None
    """The parameter that a kernel may have prepared at load, see `KernelSpec.prepare`."""

    @property
    def key(self) -> str:
        """`name@major`, as kernels claim it."""
        return f"{self.name}@{self.major}"

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def reference(self) -> str:
        """`module:attribute` of the torch reference."""
        family, _, function = self.name.partition(".")
        return f"{REFERENCE_PACKAGE}.{family}:{function}"


OP_SPECS: dict[str, OpSpec] = {}
"""Op name -> spec, filled by importing `deepinfer_core.ops`."""


def op(
    name: str,
    *,
    major: int,
    tier: int,
    features: Iterable[str] = (),
    runs_in: RunsIn = "all_steps",
    previous: str | None = None,
    weight: str | None = None,
) -> Callable[[F], F]:
    """Record a signature stub as the spec of an op; the function itself is returned unchanged.

    Raises:
        ValueError: the name is taken or has no family, the docstring is missing, or a feature
            is not in the closed set. All are bugs of the spec file.
    """

    def record(stub: F) -> F:
        spec = make_spec(
            name,
            stub,
            major=major,
            tier=tier,
            features=features,
            runs_in=runs_in,
            previous=previous,
            weight=weight,
        )
        if name in OP_SPECS:
            raise ValueError(f"op {name} has two specs")
        OP_SPECS[name] = spec
        return stub

    return record


def make_spec(
    name: str,
    stub: Callable[..., Any],
    *,
    major: int,
    tier: int,
    features: Iterable[str] = (),
    runs_in: RunsIn = "all_steps",
    previous: str | None = None,
    weight: str | None = None,
) -> OpSpec:
    """Build a spec from a stub without recording it.

    Raises:
        ValueError: as `op`.
    """
    unknown = frozenset(features) - (FEATURES - UNIVERSAL_FEATURES)
    if unknown:
        raise ValueError(f"op {name}: features {sorted(unknown)} are not optional features")
    if "." not in name:
        raise ValueError(f"op {name!r} needs a family, such as norm.rms")
    doc = inspect.getdoc(stub)
    if not doc:
        raise ValueError(f"op {name} has no docstring")
    return OpSpec(
        name=name,
        major=major,
        tier=tier,
        signature=inspect.signature(stub),
        doc=doc,
        features=frozenset(features),
        runs_in=runs_in,
        previous=previous,
        weight=weight,
    )
