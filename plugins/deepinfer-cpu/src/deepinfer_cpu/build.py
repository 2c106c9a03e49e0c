"""Compiles the kernels: `python -m deepinfer_cpu.build` does it in place.

Needs a C++ compiler and nothing else, no headers of torch or Python. The build hook of the package
runs this file as it is, so it imports nothing of the package. Each level of instructions is one
object of the same source; which one serves is decided where the library is loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
LIBRARY = Path(__file__).parent / "libdeepinfer_cpu.so"

COMPILERS = ("c++", "g++", "clang++")
"""Looked for in this order, after what `CXX` names."""

_OPTIONS = (
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden",
    # An element's bits may depend on its own inputs only, not on where it lies in a loop.
    "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_X86_LEVELS = {
    "scalar": (),
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_bf16": (*_AVX512, "-mavx512bf16"),
}
"""Level -> options of the compiler, in ascending order."""


class BuildError(Exception):
    """There is no compiler, or it refuses the sources."""


def find_compiler() -> str | None:
    """Path of a C++ compiler: what the environment variable `CXX` names, else the usual names."""
    named = os.environ.get("CXX")
    found = map(shutil.which, (named,) if named else COMPILERS)
    return next((path for path in found if path is not None), None)


def sources_key() -> str:
    """Changes with any source, so that a library of other sources is recognised."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build(target: Path = LIBRARY) -> Path:
    """Compile and put the library in place at once, so that nobody loads half of it.

    Raises:
        BuildError: there is no compiler, or it fails; with what it said.
    """
    compiler = find_compiler()
    if compiler is None:
        names = ", ".join(COMPILERS)
        raise BuildError(f"no C++ compiler: none of {names} is on the path, and CXX names none")
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    levels = _X86_LEVELS if is_x86 else {"scalar": ()}
    common = [*_OPTIONS, f'-DDEEPINFER_SOURCES="{sources_key()}"']
    common += ["-DDEEPINFER_X86"] if is_x86 else []
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        api = Path(folder, "api.o")
        commands = [[compiler, *common, "-c", str(SOURCES / "api.cpp"), "-o", str(api)]]
        for level, options in levels.items():
            source, out = SOURCES / "level.cpp", Path(folder, f"{level}.o")
            name = f"-DDEEPINFER_LEVEL={level}_kernels"
            commands.append([compiler, *common, *options, name, "-c", str(source), "-o", str(out)])
        _run_all(commands)
        library = Path(folder, target.name)
        objects = [command[-1] for command in commands]
        _run_all([[compiler, "-shared", *objects, "-o", str(library)]])
        library.replace(target)
    return target


def _run_all(commands: Sequence[Sequence[str]]) -> None:
    """Run commands side by side.

    Raises:
        BuildError: one of them fails.
    """
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    outputs = [process.communicate()[0] for process in running]
    for process, command, output in zip(running, commands, outputs, strict=True):
        if process.returncode:
            raise BuildError(f"{' '.join(command)}\nexits with {process.returncode}:\n{output}")


if __name__ == "__main__":
    try:
        print(build())
    except BuildError as error:
        sys.exit(str(error))
