"""The list of checks of a plugin: every claim once, and everything that it does not claim.

A check is a named function; pytest and `run_conformance` run the same ones. Nothing is skipped
silently: a check that cannot run says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from deepinfer_core.ops.registry import op_name
from deepinfer_core.ops.spec import UNIVERSAL_FEATURES
from deepinfer_core.plugin_api import FEATURES, KernelSpec
from deepinfer_core.testing import cache_laws, hygiene, laws
from deepinfer_core.testing.case import Case, Sizes
from deepinfer_core.testing.cases import OP_CASES
from deepinfer_core.testing.subject import Subject, spec_of
from deepinfer_core.testing.trial import NotPossibleError, RefusedError, Trial

Level = Literal["L0", "L1", "L2", "L3"]
Law = Callable[[Trial], None]

STANDARD_DTYPES = ("float32", "bfloat16", "float16")
SCHEMES = (
    "int8_token",
    "fp8_token",
    "fp8_block128",
    "fp8_block128_ue8m0",
    "fp8_block32_ue8m0",
)
_FAR_LAWS: dict[str, Law] = {
    "attn.paged": cache_laws.check_paged_far,
    "attn.mla": cache_laws.check_paged_far,
    "attn.mla_prefill": cache_laws.check_paged_far,
    "kv.store": cache_laws.check_store_far,
}
_HAS_SCHEMES = frozenset({"quant.act", "gemm.scaled"})


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to prove."""

    level: Level
    op: str
    """Empty for checks of the plugin as a whole."""
    provider: str
    name: str
    run: Callable[[], None]
    """Raises AssertionError where the claim does not hold; `NotPossibleError` or
    `RefusedError` where it cannot be tried."""
    dtype: str | None = None
    claims: frozenset[str] = frozenset()
    """Features that this check is part of the proof of."""

    @property
    def id(self) -> str:
        parts = (self.level, self.op, self.provider, self.dtype, self.name)
        return "-".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class NonClaim:
    """Something that an op may have and a kernel does not claim."""

    op: str
    provider: str
    kind: Literal["dtype", "feature", "scheme", "law"]
    what: str


def list_checks(subject: Subject) -> list[Check]:
    """All checks of levels L0 to L2, in order."""
    trials = [
        _trials(subject, kernel, dtype)
        for kernel in subject.kernels
        for dtype in kernel.caps.dtypes
    ]
    checks = list(_hygiene_checks(subject))
    checks.extend(_numerics_check(trial) for group in trials for trial in group)
    checks.extend(check for group in trials for check in _law_checks(group))
    return checks


def list_non_claims(subject: Subject) -> list[NonClaim]:
    """Everything that the kernels do not claim, in order."""
    listed: list[NonClaim] = []
    for kernel in subject.kernels:
        spec, caps = spec_of(kernel), kernel.caps
        add = partial(NonClaim, spec.name, kernel.provider)
        has_dtypes = spec.family not in ("sample", "spec") and spec.name != "kv.copy_blocks"
        if has_dtypes:
            listed += [add("dtype", dtype) for dtype in STANDARD_DTYPES if dtype not in caps.dtypes]
        if spec.name in _HAS_SCHEMES:
            listed += [add("scheme", scheme) for scheme in SCHEMES if scheme not in caps.schemes]
        listed += [add("feature", feature) for feature in sorted(spec.features - caps.features)]
        listed += [add("law", law) for law in sorted(UNIVERSAL_FEATURES - caps.features)]
    return listed


def claimed_cases(kernel: KernelSpec, dtype: str) -> list[Case]:
    """The cases that a kernel's caps cover, in one dtype."""
    caps = kernel.caps
    return [
        case
        for case in OP_CASES[op_name(kernel.op)].make(Sizes(caps.dims))
        if case.features <= caps.features
        and (case.scheme is None or case.scheme in caps.schemes)
        and (dtype in case.dtypes if case.dtypes is not None else dtype != "uint8")
    ]


def _hygiene_checks(subject: Subject) -> Iterator[Check]:
    if subject.source is None:
        yield Check("L0", "", subject.name, "process", _explain_no_process)
    else:
        run = partial(hygiene.check_process, subject.source)
        yield Check("L0", "", subject.name, "process", run)
    for kernel in subject.kernels:
        op = op_name(kernel.op)
        yield Check("L0", op, kernel.provider, "kernel", partial(hygiene.check_kernel, kernel))
        run = partial(_check_served, subject, kernel)
        yield Check("L0", op, kernel.provider, "claims-served", run)


def _check_served(subject: Subject, kernel: KernelSpec) -> None:
    """Each claim is served in some case, so that something is proved of it."""
    features = kernel.caps.features & spec_of(kernel).features
    unserved, reasons = [], set()
    for dtype in kernel.caps.dtypes:
        served: set[str] = set()
        for trial in _trials(subject, kernel, dtype):
            try:
                trial.bind()
            except RefusedError as error:
                reasons.add(str(error))
                continue
            served |= {dtype, *trial.case.features, trial.case.scheme or dtype}
        missing = {dtype, *features, *kernel.caps.schemes} - served
        unserved += [f"{claim} in {dtype}" for claim in sorted(missing)]
    assert not unserved, (
        f"claimed, but no case is served: {', '.join(unserved)}; declare sizes in caps.dims; "
        f"it says: {'; '.join(sorted(reasons)) or 'nothing'}"
    )


def _explain_no_process() -> None:
    raise NotPossibleError("only this process knows the plugin, so no fresh one can load it")


def _trials(subject: Subject, kernel: KernelSpec, dtype: str) -> list[Trial]:
    if op_name(kernel.op) not in OP_CASES:
        return []
    return [Trial(subject, kernel, case, dtype) for case in claimed_cases(kernel, dtype)]


def _numerics_check(trial: Trial) -> Check:
    return Check(
        level="L1",
        op=op_name(trial.kernel.op),
        provider=trial.kernel.provider,
        name=trial.case.name,
        run=partial(laws.check_numerics, trial),
        dtype=trial.dtype,
        claims=trial.case.features | ({trial.case.scheme} if trial.case.scheme else set()),
    )


def _law_checks(trials: Sequence[Trial]) -> Iterator[Check]:
    """One check for each law that a kernel is under in one dtype, on all cases."""
    by_law: dict[str, list[Callable[[], None]]] = {}
    for trial in trials:
        for name, law in _laws_of(trial):
            by_law.setdefault(name, []).append(partial(_try_law, law, trial))
    for name, runs in by_law.items():
        kernel = trials[0].kernel
        yield Check(
            level="L2",
            op=op_name(kernel.op),
            provider=kernel.provider,
            name=name,
            run=partial(_run_all, runs),
            dtype=trials[0].dtype,
            claims=FEATURES & {name},
        )


def _try_law(law: Law, trial: Trial) -> None:
    try:
        law(trial)
    except RefusedError:
        raise
    # Whatever a kernel raises belongs to the case that it raised in.
    except Exception as error:
        error.add_note(f"in case {trial.case.name}")
        raise


def _run_all(runs: Sequence[Callable[[], None]]) -> None:
    """Run a law on all cases that the kernel serves.

    Raises:
        RefusedError: it serves none.
    """
    refusals = []
    for run in runs:
        try:
            run()
        except RefusedError as error:
            refusals.append(error)
    if refusals and len(refusals) == len(runs):
        raise refusals[0]


def _laws_of(trial: Trial) -> Iterator[tuple[str, Law]]:
    """The laws that a kernel is under in a case; those it claims go by the claim's name."""
    kernel, op = trial.kernel, op_name(trial.kernel.op)
    laws_by_claim: dict[str, Law | None] = {
        "empty_ok": laws.check_empty,
        "deterministic": laws.check_deterministic,
        "batch_invariant": _batch_law(trial),
        "graph_safe": laws.check_replay,
    }
    for claim, law in laws_by_claim.items():
        if law is not None and claim in kernel.caps.features:
            yield claim, law
    if kernel.numerics == "exact":
        yield "exact", laws.check_exact
    if kernel.fake is not None:
        yield "fake", laws.check_fake
    if op in _FAR_LAWS and trial.case.name == _far_case(trial):
        yield "far", _FAR_LAWS[op]


def _batch_law(trial: Trial) -> Law | None:
    op = op_name(trial.kernel.op)
    rows = OP_CASES[op].rows
    if rows:
        return partial(laws.check_rows, rows=rows)
    if op not in ("attn.paged", "attn.mla", "attn.mla_prefill", "index.select"):
        return laws.check_item_by_item
    # The law makes its own batches, so it needs each set of features once.
    batches = "mixed" if "varlen" in trial.kernel.caps.features else "decode"
    return cache_laws.check_paged_rows if trial.case.name.startswith(batches) else None


def _far_case(trial: Trial) -> str:
    """The one case for what depends on offsets alone: such caches are slow to fill."""
    cases = claimed_cases(trial.kernel, trial.dtype)
    strided = [case for case in cases if "strided_cache" in case.features]
    return (strided or cases)[0].name
