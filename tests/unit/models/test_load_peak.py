"""Loading reads each stored byte once, and takes little memory beside what stays.

DEEPINFER_LOAD_GIGABYTES makes the checkpoint larger; `scripts/load_peak.py` prints the figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "load_peak.py"
GIGABYTES = os.environ.get("DEEPINFER_LOAD_GIGABYTES", "0.25")

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the kernel does not count the peak"
)


def run(*words: str) -> str:
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("load") / "model"
    run("--write", str(directory), "--gigabytes", GIGABYTES)
    return directory


@pytest.mark.parametrize("quantization", ["keep", "dequantize"])
def test_each_byte_is_read_once_and_little_is_held_twice(
    quantization: str, directory: Path
) -> None:
    found: dict[str, Any] = json.loads(
        run("--load", str(directory), "--quantization", quantization)
    )
    headers = found["stored_bytes"] - found["read_bytes"]
    assert found["read_twice_bytes"] == 0
    assert 0 < headers < 200_000
    assert abs(found["stored_bytes"] / 1e9 / float(GIGABYTES) - 1) < 0.3
    # Codes take a half or a quarter of the numbers that they mean.
    ratio = found["resident_bytes"] / found["stored_bytes"]
    assert (1.0 < ratio < 1.05) if quantization == "keep" else (2.5 < ratio < 4.0)
    assert found["peak_bytes"] < 1.3 * found["resident_bytes"]
