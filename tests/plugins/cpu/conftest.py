"""The plugin of this checkout, with its library compiled; without a compiler these tests skip."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "plugins" / "deepinfer-cpu"


@pytest.fixture(scope="session")
def cpu_build():
    """The plugin's `build` module; its sources are on the path from here on."""
    if str(FOLDER / "src") not in sys.path:
        sys.path.insert(0, str(FOLDER / "src"))
    from deepinfer_cpu import build

    if build.find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    return build


@pytest.fixture(scope="session")
def cpu_library(cpu_build):
    """The loaded library, compiled from the sources as they are now."""
    from deepinfer_cpu import library

    try:
        library.Library()
    except library.LibraryError:
        cpu_build.build()
    library.problem.cache_clear()
    return library.library()


@pytest.fixture
def at_level(cpu_library):
    """at_level(NAME): serve with the kernels of a level until the test ends."""
    from deepinfer_cpu.library import LEVELS

    best = cpu_library.best_level()

    def use(level: str) -> None:
        if LEVELS.index(level) > LEVELS.index(best):
            pytest.skip(f"needs a CPU with {level}, this one has {best}")
        cpu_library.use_level(level)

    yield use
    cpu_library.use_level(best)
