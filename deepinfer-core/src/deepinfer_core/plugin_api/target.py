"""Lazy targets: `module:attribute` strings that are imported when they are needed.

Knows nothing of what a target is. Importing a target may import anything, so nothing here runs
at discovery.
"""

from __future__ import annotations

import importlib
from operator import attrgetter
from typing import Any


def target_problem(target: object) -> str | None:
    """Say why this is not a `module:attribute` string; None if it is one. Imports nothing."""
    if not isinstance(target, str):
        return f"target must be a string 'module:attribute', not {type(target).__name__}"
    module, separator, attribute = target.partition(":")
    names = [*module.split("."), *attribute.split(".")]
    if not separator or not all(name.isidentifier() for name in names):
        return f"target {target!r} is not of the form 'module:attribute'"
    return None


def load_target(target: str) -> Any:
    """Import the module and return the attribute.

    Raises:
        ValueError: not of the form `module:attribute`.
        ImportError, AttributeError: there is no such thing; whatever else the import raises
            passes through.
    """
    if problem := target_problem(target):
        raise ValueError(problem)
    module, _, attribute = target.partition(":")
    return attrgetter(attribute)(importlib.import_module(module))
