"""The plugin's sources, which are not installed here: on the path, also of programs under test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = [
    ROOT / name / "src" for name in ("deepinfer-core", "deepinfer-recipe", "deepinfer-ascend")
]

if str(SOURCES[-1]) not in sys.path:
    sys.path.insert(0, str(SOURCES[-1]))


@pytest.fixture(scope="session")
def run_program():
    """run_program(*words, **variables): what Python prints for them, in a fresh process."""

    def run(*words, **variables):
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    return run
