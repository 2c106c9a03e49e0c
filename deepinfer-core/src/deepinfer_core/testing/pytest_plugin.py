"""The pytest options of the conformance suite. Loaded by every pytest; imports no torch.

pytest --pyargs deepinfer_core.testing.conformance --deepinfer-plugin NAME
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("deepinfer", "conformance suite of DeepInfer plugins")
    group.addoption(
        "--deepinfer-plugin",
        default="builtin",
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
