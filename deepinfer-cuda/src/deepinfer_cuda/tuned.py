"""Launch configurations as they were measured on a device, where a table of it has the shape.

A table is a TOML file in `tuning/`, written by `python -m deepinfer_cuda.tune`. Elsewhere the
functions of shapes stand as they are. No torch, no Triton.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
L = TypeVar("L")

DIRECTORY = Path(__file__).parent / "tuning"


@dataclass(frozen=True, slots=True)
class Entry:
    """One shape of one kernel."""

    kernel: str
    """The function of shapes that it amends."""
    shape: Mapping[str, Any]
    """Its arguments."""
    use: Mapping[str, Any]
    """Fields of the launch that were best."""


class Tables:
    """What is known of the device in use: one for the process, like the device itself."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.forced: dict[str, Mapping[str, Any]] = {}
        self.forget: list[Callable[[], None]] = []

    def changed(self) -> None:
        """Let nobody go by what was there before."""
        for clear in self.forget:
            clear()

    def amend(self, kernel: str, shape: Mapping[str, Any], grows: str | None) -> Mapping[str, Any]:
        """Fields to change in a launch; none where nothing was measured."""
        if kernel in self.forced:
            return self.forced[kernel]
        alike = [
            entry
            for entry in self.entries
            if entry.kernel == kernel
            and entry.shape.keys() == shape.keys()
            and all(entry.shape[name] == shape[name] for name in shape if name != grows)
            and (grows is None or entry.shape[grows] >= shape[grows])
        ]
        if not alike:
            return {}
        return min(alike, key=lambda entry: 0 if grows is None else entry.shape[grows]).use


_tables = Tables()


def use_device(name: str, directory: Path = DIRECTORY) -> None:
    """Go by the tables of this device from now on, in this process."""
    _tables.entries = [
        entry for path in sorted(directory.glob("*.toml")) for entry in read(path, name)
    ]
    _tables.changed()


def read(path: Path, device: str) -> list[Entry]:
    """The entries of a table; none if it is of another device."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if table["device"] != device:
        return []
    return [Entry(each["kernel"], each["shape"], each["use"]) for each in table["launch"]]


@contextmanager
def forced(kernel: str, use: Mapping[str, Any]) -> Iterator[None]:
    """Within, every launch of a kernel has these fields: for measuring them."""
    _tables.forced[kernel] = use
    _tables.changed()
    try:
        yield
    finally:
        del _tables.forced[kernel]
        _tables.changed()


def tuned(grows: str | None = None) -> Callable[[Callable[P, L]], Callable[P, L]]:
    """Let tables amend what a function of shapes gives.

    Args:
        grows: the argument that need not be one that was measured: then the next larger one
            serves, and behind the largest none. Other arguments must be equal.
    """

    def decorate(function: Callable[P, L]) -> Callable[P, L]:
        parameters, name = signature(function), function.__name__

        def find(*args: P.args, **kwargs: P.kwargs) -> L:
            launch: Any = function(*args, **kwargs)
            use = _tables.amend(name, parameters.bind(*args, **kwargs).arguments, grows)
            amended: L = replace(launch, **use) if use and launch is not None else launch
            return amended

        found: Any = cache(find)
        _tables.forget.append(found.cache_clear)

        @wraps(function)
        def launch(*args: P.args, **kwargs: P.kwargs) -> L:
            amended: L = found(*args, **kwargs)
            return amended

        return launch

    return decorate
