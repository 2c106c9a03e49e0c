"""The suite as a vendor runs it: pytest, a plugin's name, a report."""

import json
import os
import subprocess
import sys

import pytest

SUITE = "deepinfer_core.testing.conformance"


@pytest.fixture
def run_pytest(tmp_path, request):
    root = request.config.rootpath
    paths = (root / "deepinfer-core" / "src", root / "plugins" / "deepinfer-example" / "src")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, tmp_path)))}

    def run(*arguments):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull]
        if not has_entry_point():
            command += ["-p", "deepinfer_core.testing.pytest_plugin"]
        return subprocess.run(
            [*command, "--pyargs", SUITE, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
        )

    return run


def has_entry_point():
    from importlib.metadata import entry_points

    return any(entry.name == "deepinfer" for entry in entry_points(group="pytest11"))


def test_a_plugin_that_keeps_its_claims(run_pytest, tmp_path):
    done = run_pytest(
        *("--deepinfer-plugin", "deepinfer_example.plugin", "-k", "not L3"),
        *("--deepinfer-report", str(tmp_path / "report.json")),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "example.rms: batch_invariant" in done.stdout, "what is not claimed is listed"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["summary"]["ok"] and report["summary"]["passed"] > 50
    assert (tmp_path / "report.md").read_text().startswith("# deepinfer_example.plugin")


LYING_PLUGIN = """
import time
from deepinfer_core import hookimpl
from deepinfer_core.plugin_api import Caps, KernelSpec, PluginInfo
time.sleep(1.2)

def silu_mul(x, limit=None):
    return x[:, x.shape[1] // 2 :]

@hookimpl
def deepinfer_plugin_info():
    return PluginInfo("liar", "1", "Nobody", api=">=1.0")

@hookimpl
def deepinfer_kernels():
    return [KernelSpec("act.silu_mul@1", "liar.silu", "lying.plugin:silu_mul", Caps())]
"""


def test_a_plugin_that_lies(run_pytest, tmp_path):
    (tmp_path / "lying").mkdir()
    (tmp_path / "lying" / "__init__.py").write_text("")
    (tmp_path / "lying" / "plugin.py").write_text(LYING_PLUGIN)
    done = run_pytest("--deepinfer-plugin", "lying.plugin", "-k", "not L3")
    assert done.returncode == 1
    assert "elements wrong" in done.stdout
    assert "import took 1." in done.stdout, "an entry module must be light"


def test_a_plugin_that_is_not_there(run_pytest):
    done = run_pytest("--deepinfer-plugin", "nobody")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "nobody" in done.stderr + done.stdout


def test_the_options_cost_other_test_runs_nothing():
    code = "import deepinfer_core.testing.pytest_plugin, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
