"""Loads the plugin that is checked, makes a test of each check, and reports at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from deepinfer_core.testing.checks import Check, list_non_claims
from deepinfer_core.testing.report import CheckResult, Report, make_report
from deepinfer_core.testing.run import all_checks, run_check
from deepinfer_core.testing.subject import BUILTIN_NAMES, Subject, find_subject

SUBJECT = pytest.StashKey[Subject]()
RESULTS = pytest.StashKey[list[CheckResult]]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check" in metafunc.fixturenames:
        checks = _checks(metafunc.config, metafunc.module.LEVEL)
        metafunc.parametrize("check", checks, ids=[check.id for check in checks])


@pytest.fixture
def prove(request: pytest.FixtureRequest) -> Callable[[Check], None]:
    """Run a check, keep its result for the report, and fail or skip as it says."""

    def run(check: Check) -> None:
        result = run_check(check)
        request.config.stash[RESULTS].append(result)
        if result.outcome == "failed":
            pytest.fail(result.message, pytrace=False)
        if result.outcome != "passed":
            pytest.skip(f"{result.outcome}: {result.message}")

    return run


def pytest_sessionfinish(session: pytest.Session) -> None:
    path, report = session.config.getoption("--deepinfer-report"), _report(session.config)
    if path is not None and report is not None:
        report.write(Path(path))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    report = _report(config)
    if report is None:
        return
    terminalreporter.section(f"conformance of {report.plugin['name']} on {report.device['kind']}")
    terminalreporter.write_line(f"{len(report.non_claims)} not claimed, and so not run:")
    kernels = dict.fromkeys((claim.op, claim.provider) for claim in report.non_claims)
    for op, provider in kernels:
        own = [c.what for c in report.non_claims if (c.op, c.provider) == (op, provider)]
        terminalreporter.write_line(f"  {op} {provider}: {', '.join(own)}")


def _checks(config: pytest.Config, level: str) -> Sequence[Check]:
    if SUBJECT not in config.stash:
        name = config.getoption("--deepinfer-plugin") or BUILTIN_NAMES[0]
        config.stash[SUBJECT] = find_subject(name, config.getoption("--deepinfer-device"))
        config.stash[RESULTS] = []
    return [check for check in all_checks(config.stash[SUBJECT]) if check.level == level]


def _report(config: pytest.Config) -> Report | None:
    if SUBJECT not in config.stash:
        return None
    subject, results = config.stash[SUBJECT], config.stash[RESULTS]
    return make_report(subject, results, list_non_claims(subject))
