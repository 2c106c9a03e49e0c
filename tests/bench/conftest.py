"""Where results go: a table on the terminal, and JSON with the machine beside it."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from deepinfer_core.bench.machine import describe_machine

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def smollm2(pytestconfig) -> Path:
    path = pytestconfig.rootpath / MODEL
    if not path.exists():
        pytest.skip(f"needs {MODEL}: `make model` fetches it")
    return path


@pytest.fixture
def publish(pytestconfig, capsys):
    """publish(name, lines, results): show the lines, write build/bench/NAME.json."""

    def publish(name: str, lines: list[str], results: object) -> None:
        directory = pytestconfig.rootpath / "build" / "bench"
        directory.mkdir(parents=True, exist_ok=True)
        report = {"machine": asdict(describe_machine()), "results": results}
        (directory / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
        with capsys.disabled():
            print("\n" + "\n".join(lines))

    return publish
