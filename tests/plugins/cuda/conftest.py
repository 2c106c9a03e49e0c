"""The plugin's sources, which are not installed here: on the path, also of programs under test.

Helpers of these tests are on the path, too.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = [ROOT / name / "src" for name in ("deepinfer-core", "deepinfer-recipe", "deepinfer-cuda")]

for folder in (SOURCES[-1], Path(__file__).parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.fixture(scope="session")
def run_program(tmp_path_factory):
    """run_program(*words, **variables): what Python prints for them, in a fresh process."""
    folder = tmp_path_factory.mktemp("triton")

    def run(*words, timeout=600, **variables):
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
            "TRITON_CACHE_DIR": str(folder),
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    return run
