"""Builds distributions and fresh environments for them, without the network."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest


def run_command(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command and keep what it prints; a failure is an error."""
    return run_command


@pytest.fixture(scope="session")
def build() -> Callable[..., Path]:
    """Build the distributions of a folder with this environment's hatchling."""

    def build(folder: Path, out: Path, *options: str) -> Path:
        run_command(
            sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", out, folder
        )
        return out

    return build


@pytest.fixture(scope="session")
def make_environment() -> Callable[..., Path]:
    """Make an environment with some wheels, and give its interpreter."""

    def make(root: Path, *wheels: Path, sources: tuple[Path, ...] = ()) -> Path:
        """Share this environment's packages, and these sources, behind the wheels."""
        run_command(sys.executable, "-m", "venv", "--without-pip", root)
        interpreter = root / "bin" / "python"
        run_command(
            sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet",
            "--no-deps", "--no-index", "--disable-pip-version-check", *wheels,
        )  # fmt: skip
        (packages,) = (root / "lib").glob("python*/site-packages")
        # addsitedir, so that editable installs of the shared environment count as well.
        shared = [*sources, Path(sysconfig.get_paths()["purelib"])]
        lines = [f"import site; site.addsitedir({str(path)!r})" for path in shared]
        (packages / "zz_shared.pth").write_text("\n".join(lines))
        return interpreter

    return make
