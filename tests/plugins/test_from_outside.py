"""The tutorial plugin, built into a wheel and installed into a fresh environment."""

import json
import zipfile
from pathlib import Path

import deepinfer_core
import pytest

EXAMPLE = Path(__file__).parents[2] / "plugins" / "deepinfer-example"
CLI = "from deepinfer_core.cli import main; main()"


@pytest.fixture(scope="module")
def wheel(build, tmp_path_factory):
    (path,) = build(EXAMPLE, tmp_path_factory.mktemp("dist"), "--wheel").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel, make_environment, tmp_path_factory):
    """An environment that shares this one's packages and has the wheel besides."""
    core = Path(deepinfer_core.__file__).parents[1]
    return make_environment(tmp_path_factory.mktemp("fresh") / "env", wheel, sources=(core,))


@pytest.fixture
def plugins(python, run):
    """What `deepinfer plugins --json` says there, by name."""

    def plugins(*options):
        done = run(python, "-I", "-c", CLI, "plugins", "--json", *options)
        return {p["name"]: p for p in json.loads(done.stdout)["plugins"]}

    return plugins


def test_the_wheel_holds_what_a_distribution_should(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name for name in archive.namelist()}
    assert {"plugin.py", "kernels.py", "py.typed", "LICENSE", "entry_points.txt"} <= names


def test_the_command_line_sees_the_plugin(plugins):
    example = plugins()["example"]
    assert example["distribution"] == "deepinfer-example"
    assert (example["version"], example["api"]) == ("0.1.0", ">=1.0,<2")
    assert (example["state"], example["failure"]) == ("loaded", None)
    assert example["hooks"] == ["deepinfer_kernels", "deepinfer_plugin_info"]


def test_it_can_be_blocked_and_named(plugins):
    assert plugins("--block", "deepinfer-example")["example"]["state"] == "blocked"
    assert plugins("-p", "example")["example"]["state"] == "loaded"


def test_its_kernels_serve_and_agree_with_the_reference(python, run):
    code = """
import sys, torch
from deepinfer_core.plugins import PluginHost
from deepinfer_core.ops.table import make_op_table
host = PluginHost(allow=["example"])
device = host.find_device("cpu")
kernels = host.kernels(device)
assert "deepinfer_example.kernels" not in sys.modules
def bind(op, features, **options):
    ops = make_op_table(kernels, device=device, **options)
    return ops.bind(op, dtype="float32", features=features)
x, residual = torch.randn(5, 64), torch.randn(5, 64)
for op, features, arguments in [
    ("norm.rms", ["residual"], (x, torch.rand(64), 1e-6, residual)),
    ("act.silu_mul", ["limit"], (x, 0.5)),
]:
    ours = bind(op, features)
    theirs = bind(op, features, overrides={op: "torch.reference"})
    assert ours.provider == f"example.{op.split('.')[1]}", ours.provider
    torch.testing.assert_close(ours(*arguments), theirs(*arguments))
print("agreed")
"""
    assert run(python, "-I", "-c", code).stdout == "agreed\n"


def test_discovery_imports_neither_torch_nor_the_kernels(python, run):
    code = (
        "import sys; from deepinfer_core.plugins import PluginHost; h = PluginHost(); "
        "h.kernels(h.find_device('cpu')); "
        "print([m for m in ('torch', 'deepinfer_example.kernels') if m in sys.modules])"
    )
    assert run(python, "-I", "-c", code).stdout == "[]\n"


def test_the_tutorial_stays_short():
    sources = list((EXAMPLE / "src").rglob("*.py"))
    assert sum(len(path.read_text().splitlines()) for path in sources) <= 60
