"""The compiled library: whether it can serve here, and its functions with their C types.

Nothing is loaded when this is imported. No torch here; the kernels that call these functions know
about tensors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from deepinfer_cpu.build import LIBRARY, sources_key

LEVELS = ("scalar", "avx2", "avx512", "avx512_bf16")
"""Levels of instructions, ascending; the best that the CPU has serves."""

DTYPE_CODES = {"float32": 0, "bfloat16": 1, "float16": 2}
"""What `csrc/kernels.h` calls them."""

REBUILD = "`python -m deepinfer_cpu.build` builds it"

_i, _n, _f, _p = ctypes.c_int, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "rms": (_i, _p, _n, _p, _f, _p, _n, _p, _p, _n, _n, _i),
    "silu_mul": (_i, _p, _n, _p, _n, _n, _f, _i),
    "rope": (_i, _p, _n, _n, _p, _p, _p, _n, _n, _n, _n, _n, _i, _i, _i),
    "store": (_p, _n, _p, _n, _p, _n, _p, _n, _p, _n, _n, _n),
    "paged": (
        _i, _p, _n, _p, _n, _p, _n, _p, _p, _p, _n, _n, _n, _n, _n, _n, _f, _n, _p, _f, _p, _p, _i,
    ),
    "dense": (_i, _p, _n, _p, _n, _i, _p, _p, _n, _n, _n, _i),
    "pack": (_i, _p, _n, _p, _n, _n, _i),
}  # fmt: skip
"""Argument types, in the order of `csrc/api.cpp`."""


class LibraryError(Exception):
    """The library cannot serve; the text says why and what to do."""


class Library:
    """The loaded library, using the best level of instructions that the CPU has.

    Args:
        path: of the shared library.

    Raises:
        LibraryError: it is not there, cannot be loaded, or was built from other sources.
    """

    def __init__(self, path: Path = LIBRARY) -> None:
        if not path.exists():
            raise LibraryError(f"not compiled: no C++ compiler at install? With one, {REBUILD}")
        try:
            self._dll = ctypes.CDLL(str(path))
            self._dll.deepinfer_cpu_sources.restype = ctypes.c_char_p
            built_from = self._dll.deepinfer_cpu_sources().decode()
        except (OSError, AttributeError) as error:
            raise LibraryError(f"cannot be loaded: {error}; {REBUILD} anew") from error
        if built_from != sources_key():
            raise LibraryError(f"compiled from other sources than these; {REBUILD} anew")
        self.use_level(self.best_level())

    def best_level(self) -> str:
        """The highest of `LEVELS` that this CPU has."""
        return LEVELS[self._dll.deepinfer_cpu_best_level()]

    def level(self) -> str:
        """The one of `LEVELS` that serves."""
        return LEVELS[self._dll.deepinfer_cpu_level()]

    def use_level(self, level: str) -> None:
        """Serve with the kernels of this level from now on, for the whole process.

        Raises:
            LibraryError: the CPU does not have it.
        """
        if not self._dll.deepinfer_cpu_use_level(LEVELS.index(level)):
            raise LibraryError(f"this CPU has {self.best_level()} at most, not {level}")

    def share_threads(self) -> bool:
        """Run on the threads of the OpenMP runtime that this process has loaded.

        Returns:
            Whether there is one; without, every kernel runs on the calling thread.
        """
        region = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
        self._dll.deepinfer_cpu_use_threads_of(region and ctypes.cast(region, _p))
        return region is not None

    def function(self, name: str) -> Callable[..., None]:
        """One of the kernels, by the name that `csrc/api.cpp` gives it behind `deepinfer_cpu_`."""
        found = self._dll[f"deepinfer_cpu_{name}"]
        found.argtypes, found.restype = _SIGNATURES[name], None
        typed: Callable[..., None] = found
        return typed


@cache
def library() -> Library:
    """The installed library, loaded when it is first asked for.

    Raises:
        LibraryError: it cannot serve here.
    """
    return Library()


@cache
def problem() -> str | None:
    """Why the library cannot serve here, in words that a person can act on; None if it can."""
    try:
        library()
    except LibraryError as error:
        return str(error)
    return None
