"""The result of a conformance run: versioned JSON, and a support table for people."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from deepinfer_core import __version__
from deepinfer_core.ops.spec import UNIVERSAL_FEATURES
from deepinfer_core.plugin_api import API_VERSION
from deepinfer_core.testing.checks import Check, NonClaim
from deepinfer_core.testing.subject import Subject

REPORT_VERSION = 1

Outcome = Literal["passed", "failed", "refused", "not_run"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What became of one check."""

    level: str
    op: str
    provider: str
    dtype: str | None
    name: str
    claims: tuple[str, ...]
    outcome: Outcome
    seconds: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was claimed and tried, and everything that was not claimed."""

    plugin: dict[str, str]
    device: dict[str, Any]
    environment: dict[str, str]
    results: Sequence[CheckResult]
    non_claims: Sequence[NonClaim]

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> list[CheckResult]:
        return [result for result in self.results if result.outcome == "failed"]

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome == outcome for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, under `version`."""
        return {
            "version": REPORT_VERSION,
            "plugin": self.plugin,
            "device": self.device,
            "environment": self.environment,
            "summary": {
                "ok": self.ok,
                "passed": self.count("passed"),
                "failed": self.count("failed"),
                "refused": self.count("refused"),
                "not_run": self.count("not_run"),
                "not_claimed": len(self.non_claims),
            },
            "results": [asdict(result) for result in self.results],
            "not_claimed": [asdict(claim) for claim in self.non_claims],
        }

    def write(self, path: Path) -> None:
        """Write JSON, and beside it the table as `.md`."""
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(self.to_markdown(), encoding="utf-8")

    def to_markdown(self) -> str:
        """One row for each kernel: what it claims and whether that held."""
        lines = [
            f"# {self.plugin['name']} {self.plugin['version']} on {self.device['kind']}",
            "",
            f"{self.count('passed')} checks passed, {self.count('failed')} failed, "
            f"{self.count('refused')} refused, {self.count('not_run')} not run. "
            "Struck through: claimed, does not hold.",
            "",
            "| op | provider | dtypes | features | laws |",
            "| --- | --- | --- | --- | --- |",
        ]
        kernels = dict.fromkeys((r.op, r.provider) for r in self.results if r.op)
        for op, provider in kernels:
            own = [r for r in self.results if (r.op, r.provider) == (op, provider)]
            dtypes = dict.fromkeys(r.dtype for r in own if r.dtype)
            claims = dict.fromkeys(claim for r in own for claim in r.claims)
            cells = (
                [_cell(dtype, (r for r in own if r.dtype == dtype)) for dtype in dtypes],
                [_claim_cell(c, own) for c in sorted(claims) if c not in UNIVERSAL_FEATURES],
                [_claim_cell(c, own) for c in sorted(claims) if c in UNIVERSAL_FEATURES],
            )
            joined = " | ".join(", ".join(cell) or "-" for cell in cells)
            lines.append(f"| {op} | {provider} | {joined} |")
        return "\n".join([*lines, *self._explanations(), ""])

    def _explanations(self) -> list[str]:
        lines = []
        titles = {"failed": "Failed", "refused": "Refused", "not_run": "Not run"}
        for outcome, title in titles.items():
            found = [result for result in self.results if result.outcome == outcome]
            if found:
                lines += ["", f"## {title}", ""]
                lines += [
                    f"- {' '.join(filter(None, (r.level, r.op, r.provider, r.dtype, r.name)))}: "
                    f"{r.message}"
                    for r in found
                ]
        if self.non_claims:
            lines += ["", "## Not claimed", ""]
            kernels = dict.fromkeys((claim.op, claim.provider) for claim in self.non_claims)
            for key in kernels:
                whats = [c.what for c in self.non_claims if (c.op, c.provider) == key]
                lines.append(f"- {key[0]} {key[1]}: {', '.join(whats)}")
        return lines


def make_report(
    subject: Subject, results: Sequence[CheckResult], non_claims: Sequence[NonClaim]
) -> Report:
    """Join results with what the plugin, the device and the software are."""
    device = asdict(subject.device)
    device["features"] = sorted(device["features"])
    return Report(
        plugin={
            "name": subject.name,
            "distribution": subject.record.distribution,
            "version": subject.record.version,
        },
        device=device,
        environment={
            "deepinfer_core": __version__,
            "plugin_api": API_VERSION,
            "torch": version("torch"),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "system": platform.system(),
        },
        results=results,
        non_claims=non_claims,
    )


def make_result(check: Check, outcome: Outcome, seconds: float, message: str = "") -> CheckResult:
    """The result of a check."""
    return CheckResult(
        level=check.level,
        op=check.op,
        provider=check.provider,
        dtype=check.dtype,
        name=check.name,
        claims=tuple(sorted(check.claims)),
        outcome=outcome,
        seconds=round(seconds, 4),
        message=message,
    )


def _claim_cell(claim: str, results: Iterable[CheckResult]) -> str:
    return _cell(claim, (result for result in results if claim in result.claims))


def _cell(what: str, results: Iterable[CheckResult]) -> str:
    return f"~~{what}~~" if any(result.outcome == "failed" for result in results) else what
