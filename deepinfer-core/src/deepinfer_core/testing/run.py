"""`run_conformance`: all checks of a plugin in this process, without pytest."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path

from deepinfer_core.testing.checks import Check, Level, list_checks, list_non_claims
from deepinfer_core.testing.engine_checks import list_engine_checks
from deepinfer_core.testing.report import CheckResult, Outcome, Report, make_report, make_result
from deepinfer_core.testing.subject import Subject, find_subject
from deepinfer_core.testing.trial import NotPossibleError, RefusedError

LEVELS: tuple[Level, ...] = ("L0", "L1", "L2", "L3")


def run_conformance(
    plugin: str | Subject,
    *,
    levels: Collection[Level] = LEVELS,
    device_kind: str | None = None,
    report_path: Path | None = None,
) -> Report:
    """Try everything that a plugin claims. Blocks, for a minute or so.

    Args:
        plugin: a name as for `find_subject`, or what it returns.
        levels: which levels to run.
        device_kind: where; default: the first device that the plugin finds, else the CPU.
        report_path: write JSON here, and a table beside it.

    Raises:
        PluginError: the plugin cannot be loaded.
        PlatformError: there is no such device.
    """
    subject = plugin if isinstance(plugin, Subject) else find_subject(plugin, device_kind)
    results = [run_check(check) for check in all_checks(subject, levels)]
    report = make_report(subject, results, list_non_claims(subject))
    if report_path is not None:
        report.write(report_path)
    return report


def all_checks(subject: Subject, levels: Collection[Level] = LEVELS) -> Iterator[Check]:
    """The checks of these levels, in order."""
    yield from (check for check in list_checks(subject) if check.level in levels)
    if "L3" in levels:
        yield from list_engine_checks(subject)


def run_check(check: Check) -> CheckResult:
    """Run one check and turn whatever it raises into an outcome."""
    start = time.perf_counter()
    outcome: Outcome = "passed"
    message = ""
    try:
        check.run()
    except RefusedError as error:
        outcome, message = "refused", str(error)
    except NotPossibleError as error:
        outcome, message = "not_run", str(error)
    # A border: a kernel may raise anything, and the other checks must go on.
    except Exception as error:
        outcome, message = "failed", explain(error)
    return make_result(check, outcome, time.perf_counter() - start, message)


def explain(error: Exception) -> str:
    """One line: what was raised, and in which case."""
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    notes = [f"({note})" for note in getattr(error, "__notes__", ())]
    return " ".join([kind + " ".join(str(error).split()), *notes])
