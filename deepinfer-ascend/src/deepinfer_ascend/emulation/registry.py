"""`emulates` and `install`: from names of operators to torch's dispatcher.

The snapshot `schemas.txt` holds the declarations of torch_npu that this plugin calls. They are
defined as they stand, so a call with a wrong name, number or type of argument fails here as there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

EMULATIONS: dict[str, Callable[..., Any]] = {}
"""Operator, as `npu_rms_norm`, -> what computes it."""
NAMESPACE = "npu"
_LIBRARIES: list[torch.library.Library] = []
"""Definitions last as long as these do."""


def emulates(name: str) -> Callable[[F], F]:
    """Let a function stand for an operator; it takes what the schema says, and checks what the
    operator's documents demand, so that calls that an NPU refuses fail here too."""

    def record(function: F) -> F:
        EMULATIONS[name] = function
        return function

    return record


@cache
def read_schemas() -> dict[str, str]:
    """Operator -> its schema without the namespace."""
    text = (files(__package__) / "schemas.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.partition("(")[0]: line for line in lines}


@cache
def install() -> None:
    """Define the operators in this process, those that there are not, and compute them on CPUs.

    Raises:
        KeyError: a schema has no emulation.
    """
    library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in read_schemas().items():
        if not hasattr(getattr(torch.ops, NAMESPACE), name):
            library.define(schema)
        library.impl(name, EMULATIONS[name], "CPU")
    _LIBRARIES.append(library)


def require(is_met: bool, what: str) -> None:
    """Refuse a call that an NPU would refuse.

    Raises:
        ValueError: says what the operator demands.
    """
    if not is_met:
        raise ValueError(f"the operator wants {what}")
