"""What the README shows runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def python_example():
    (code,) = re.findall(r"^```python\n(from deepinfer_core import LLM.*?)^```", README,
                         re.DOTALL | re.MULTILINE)  # fmt: skip
    return code


def test_the_example_has_twelve_lines():
    lines = [line for line in python_example().splitlines() if line.strip()]
    assert len(lines) == 12
    assert f'"{MODEL.relative_to(ROOT)}"' in lines[1]


@pytest.mark.skipif(not MODEL.exists(), reason="needs the model of `make model`")
def test_the_example_runs():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", python_example()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(" Paris")
    # The last two lines score " Paris" and " Rome".
    (paris, paris_is_greedy), (rome, rome_is_greedy) = (line.split() for line in lines[-2:])
    assert (paris_is_greedy, rome_is_greedy) == ("True", "False")
    assert float(paris) > float(rome)
