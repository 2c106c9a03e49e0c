"""`KernelSpec`, `Caps` and `Problem`: what a kernel claims and what a model asks for.

Selection (`deepinfer_core.ops.registry`) matches the two. Anything a kernel does not list is
refused. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

FEATURES: frozenset[str] = frozenset(
    {
        "varlen", "window", "sinks", "softcap", "lse_out", "noncausal", "device_query_lens",
        "graph_safe", "batch_invariant", "deterministic", "inplace", "empty_ok", "strided_cache",
        "bias", "residual", "limit", "inverse", "interleaved", "quantized_out", "expert_map",
        "groups", "image_bias", "hash_ids", "renormalize", "sigmoid", "sqrtsoftplus", "latent",
        "candidates", "delayed", "quantized", "records", "qk_norm", "rounded_rows",
    }
)  # fmt: skip
"""The closed set of feature flags. A new one is an additive change of the API."""

PERMISSIONS: frozenset[str] = frozenset({"rounded_rows"})
"""Features that a problem allows rather than asks for: a kernel that does not claim them serves it
too, and one that must have them says so in `supports`."""

Numerics = Literal["exact", "rounding", "approximate"]
"""Tolerance class: same bits as the reference; same maths, other rounding; other maths."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a kernel cannot serve a problem, in words that a person can act on."""

    text: str

    def __bool__(self) -> Literal[False]:
        return False


@dataclass(frozen=True, slots=True)
class Problem:
    """What one layer role asks of one op: static facts only."""

    op: str
    """Name without major, such as `attn.paged`."""
    dtype: str
    """`float32`, `bfloat16` or `float16`: the activations."""
    shape: tuple[tuple[str, int], ...] = ()
    """Named static sizes, sorted: `head_dim`, `num_kv_heads`, `in_features`, `block_size`, ..."""
    kv_dtype: str | None = None
    features: frozenset[str] = frozenset()
    scheme: str | None = None
    """How operands are quantised, such as `int8_token`; None for plain operands."""
    role: str = ""
    """Where in the model, such as `attn.qkv`; shown to people, matched by policies."""

    def dim(self, name: str) -> int | None:
        """The named size, or None when the problem does not fix it."""
        return dict(self.shape).get(name)


@dataclass(frozen=True, slots=True)
class Caps:
    """Declarative capabilities. An empty field claims nothing beyond the default."""

    device_kinds: tuple[str, ...] = ("cpu",)
    """`*` is any."""
    arch: tuple[str | None, str | None] = (None, None)
    """Inclusive window of `DeviceInfo.arch`, compared as versions."""
    dtypes: tuple[str, ...] = ("float32",)
    kv_dtypes: tuple[str, ...] = ()
    """Empty: the activations' dtype only."""
    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Named sizes that are supported, such as `{"head_dim": (64, 128)}`; unnamed sizes are free."""
    features: frozenset[str] = frozenset()
    schemes: tuple[str, ...] = ()
    """Quantisation schemes; empty: plain operands only."""


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One implementation of one op, claimed by a plugin."""

    op: str
    """`name@major`, such as `attn.paged@1`."""
    provider: str
    """`vendor.name`, such as `acme.fa`."""
    target: str
    """`module:attribute`, imported only when selected. Same signature as the op's reference."""
    caps: Caps = Caps()
    supports: Callable[[Problem], bool | Reason] | None = None
    """Pure; for what `caps` cannot say."""
    workspace: Callable[[Problem], int] | None = None
    """Bytes of scratch memory."""
    plan: str | None = None
    """`module:attribute` of `plan(problem, meta) -> object`, called once per step."""
    prepare: str | None = None
    """`module:attribute` of `prepare(problem, weight) -> Tensor`, called once per weight at load.

    The kernel is then given the result in the weight's place, which is freed. It must take plain
    weights too: a matrix that also serves another purpose, such as a tied embedding, stays plain.
    """
    fake: str | None = None
    """`module:attribute` of the shape function."""
    compile_failure: str | None = None
    """`module:attribute` of `compile_failure(error) -> str | None`, for kernels that are compiled
    when they are first called: what an exception of the kernel says of why it does not compile on
    this device, None if it says anything else. The next kernel in rank then serves, unless this
    one was named; no work of the kernel may have been queued."""
    priority: int = 20
    """0 reference, 10 portable, 20 vendor, 30 specialised."""
    numerics: Numerics = "rounding"
