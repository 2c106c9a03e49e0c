"""The pytest options of the conformance suite. Loaded by every pytest; imports no torch.

pytest --pyargs deepinfer_core.testing.conformance --deepinfer-plugin NAME
"""

from __future__ import annotations

import pytest

from deepinfer_core.errors import DeepInferError
from deepinfer_core.plugin_api.target import load_target

# Imports torch, so only where a plugin is asked for.
FIND_SUBJECT = "deepinfer_core.testing.subject:find_subject"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("deepinfer", "conformance suite of DeepInfer plugins")
    group.addoption(
        "--deepinfer-plugin",
        default=None,
        metavar="NAME",
        help="plugin to check: entry point, distribution, dotted module, or builtin (default)",
    )
    group.addoption(
        "--deepinfer-device",
        default=None,
        metavar="KIND",
        help="device to check it on; default: the first that the plugin finds, else the cpu",
    )
    group.addoption(
        "--deepinfer-report",
        default=None,
        metavar="PATH",
        help="write the results to this file as JSON, and as a table to PATH with suffix .md",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say at once that a plugin cannot be loaded, rather than in every module that needs it."""
    name = session.config.getoption("--deepinfer-plugin")
    if name is None:
        return
    try:
        load_target(FIND_SUBJECT)(name, session.config.getoption("--deepinfer-device"))
    except (DeepInferError, ImportError) as error:
        raise pytest.UsageError(str(error)) from error
