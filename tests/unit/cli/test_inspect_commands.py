"""`plugins`, `kernels explain` and `doctor`: what they print, as tables and as JSON."""

import importlib.metadata
import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from deepinfer_core import builtin_plugin
from deepinfer_core.cli import doctor_checks, doctor_cmd, kernels_cmd, plugins_cmd
from deepinfer_core.cli.doctor_checks import EXTRAS, examine
from deepinfer_core.cli.kernels_cmd import parse_overrides
from deepinfer_core.cli.kernels_explain import explain_model
from deepinfer_core.config import nest_fields
from deepinfer_core.errors import ConfigError, PluginError, UnsupportedOpError
from deepinfer_core.plugin_api import Caps, KernelSpec, PluginInfo, Reason, hookimpl
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from typer.testing import CliRunner


class Vendor:
    """Offers one fast kernel."""

    @hookimpl
    def deepinfer_plugin_info(self):
        return PluginInfo("acme", "1.2", "Acme", api=">=1.0,<2")

    @hookimpl
    def deepinfer_kernels(self, device):
        caps = Caps(dtypes=("float32",), features=frozenset({"residual"}))
        target = "deepinfer_core.ops.reference.norm:rms"
        return [KernelSpec("norm.rms@1", "acme.rms", target, caps)]


class Silent(Vendor):
    """Its kernels cannot be listed, which nobody notices before they are asked for."""

    @hookimpl
    def deepinfer_kernels(self, device):
        raise OSError("no compiler")


class Copycat(Vendor):
    """Claims what the vendor claims."""


class Broken:
    @hookimpl
    def deepinfer_plugin_info(self):
        raise OSError("no driver")


def host_with(*plugins):
    def make(load_entry_points=True, allow=None, block=()):
        host = PluginHost(load_entry_points=False)
        for plugin in plugins:
            name = type(plugin).__name__.lower()
            host.register(plugin, name=name, distribution=f"deepinfer-{name}", is_named=False)
        return host

    return make


@pytest.fixture
def run():
    app = typer.Typer()
    for module in (plugins_cmd, kernels_cmd, doctor_cmd):
        module.register(app)
    runner = CliRunner()

    def invoke(*arguments, exit_code=0):
        result = runner.invoke(app, arguments, env={"COLUMNS": "200"}, catch_exceptions=False)
        assert result.exit_code == exit_code, result.output
        return result.output

    return invoke


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("m") / "qwen3", "qwen3"))


# plugins -----------------------------------------------------------------------------------------


def test_plugins_lists_what_works_and_what_failed(run, monkeypatch):
    monkeypatch.setattr(plugins_cmd, "PluginHost", host_with(Vendor(), Broken()))
    answer = json.loads(run("plugins", "--json"))
    assert answer["api"] == "1.0"
    core, vendor, broken = answer["plugins"]
    assert core["devices"][0]["kind"] == "cpu"
    assert (vendor["name"], vendor["api"], vendor["state"]) == ("vendor", ">=1.0,<2", "loaded")
    assert vendor["hooks"] == ["deepinfer_kernels", "deepinfer_plugin_info"]
    assert (broken["state"], broken["failure"]["hook"]) == ("failed", "deepinfer_plugin_info")
    assert "no driver" in broken["failure"]["message"]


def test_plugins_prints_a_table_and_each_failure_on_a_line(run, monkeypatch):
    monkeypatch.setattr(plugins_cmd, "PluginHost", host_with(Vendor(), Broken()))
    text = run("plugins")
    for word in ("deepinfer-vendor 0", ">=1.0,<2", "kernels, plugin_info", "cpu:0", "loaded"):
        assert word in text
    assert "failed plugin deepinfer-broken 0 in deepinfer_plugin_info: OSError: no driver" in text


def test_plugins_hands_on_what_was_asked_for(run, monkeypatch):
    with pytest.raises(PluginError, match=r"plugin nowhere.*not installed"):
        run("plugins", "-p", "nowhere")


def test_plugins_check_runs_the_conformance_suite(run, monkeypatch, tmp_path):
    called = []

    class Done:
        returncode = 1

    monkeypatch.setattr(plugins_cmd, "PluginHost", lambda allow: called.append(allow))
    monkeypatch.setattr(
        plugins_cmd.subprocess, "run", lambda command, **_: called.append(command) or Done
    )
    run("plugins", "check", "acme", "--report", str(tmp_path / "r.json"), exit_code=1)
    assert called[0] == ["acme"]
    assert called[1][1:] == [
        "-m", "pytest", "--pyargs", "deepinfer_core.testing.conformance",
        "--deepinfer-plugin", "acme", "--deepinfer-report", str(tmp_path / "r.json"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["builtin", "core", "some.module"])
def test_plugins_check_prints_json_also_of_what_is_no_installed_plugin(run, monkeypatch, name):
    def conformance(command, *, check, stdout):
        assert stdout is sys.stderr
        Path(command[command.index("--deepinfer-report") + 1]).write_text('{"version": 1}')
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(plugins_cmd.subprocess, "run", conformance)
    assert json.loads(run("plugins", "check", name, "--json")) == {"version": 1}


def test_a_report_that_cannot_be_written_is_told_before_the_check(run, tmp_path):
    report = tmp_path / "none" / "report.json"
    with pytest.raises(ConfigError, match=r"cannot be written: No such file .*field --report"):
        run("plugins", "check", builtin_plugin.NAME, "--report", str(report))


def test_plugins_check_without_pytest_names_the_extra(run, monkeypatch):
    monkeypatch.setattr(plugins_cmd.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"deepinfer-core\[test\]"):
        run("plugins", "check", "acme")


# kernels -----------------------------------------------------------------------------------------


def explain(model, host=None, **fields):
    host = host or host_with(Vendor())()
    return explain_model(nest_fields({"model": model, **fields}), host)


def test_explain_covers_every_op_of_the_model_and_the_sampler(model):
    answer = explain(model, dtype="float32")
    assert (answer.architecture, answer.dtype, answer.device) == (
        "Qwen3ForCausalLM", "float32", "cpu:0",
    )  # fmt: skip
    ops = {choice.op for choice in answer.choices}
    assert {"norm.rms", "act.silu_mul", "rope.apply", "gemm.dense", "kv.store", "attn.paged",
            "sample.draw", "sample.stages"} <= ops  # fmt: skip
    assert all(choice.problem.role for choice in answer.choices if choice.op == "gemm.dense")


def test_explain_says_why_and_why_not_the_others(model):
    norm = next(c for c in explain(model, dtype="float32").choices if c.op == "norm.rms")
    assert (norm.provider, norm.why) == ("acme.rms", "priority 20")
    assert ("torch.reference", "can serve, ranks after acme.rms (priority 20; own priority 0)") in (
        norm.rejected
    )
    half = next(c for c in explain(model, dtype="bfloat16").choices if c.op == "norm.rms")
    assert half.provider == "torch.reference"
    assert ("acme.rms", "dtype bfloat16 is not one of float32") in half.rejected


def test_explain_filters_and_overrides_like_the_engine(model):
    strict = explain(model, dtype="float32", batch_invariant=True)
    assert all("batch_invariant" in c.kernel.caps.features for c in strict.choices)
    named = explain(model, dtype="float32", kernels={"norm.*": "torch.reference"})
    norm = next(c for c in named.choices if c.op == "norm.rms")
    assert (norm.provider, norm.why) == ("torch.reference", "named in kernels=")
    with pytest.raises(UnsupportedOpError, match=r"acme\.rms: named, but dtype bfloat16"):
        explain(model, dtype="bfloat16", kernels={"norm.rms": "acme.rms"})


def test_explain_loads_the_plugins_that_are_named(run, model, monkeypatch):
    asked = []

    def make(load_entry_points=True, allow=None, block=()):
        asked.append((allow, block))
        return PluginHost(load_entry_points=False)

    monkeypatch.setattr("deepinfer_core.cli.kernels_explain.PluginHost", make)
    run("kernels", "explain", model, "-p", "acme", "--plugin", "other", "--block", "bad")
    run("kernels", "explain", model)
    assert asked == [(("acme", "other"), ("bad",)), (None, ())]


def test_explain_prints_json_and_a_table(run, model, monkeypatch):
    # Whatever is installed beside core would serve, too.
    alone = PluginHost(load_entry_points=False)
    monkeypatch.setattr("deepinfer_core.cli.kernels_explain.PluginHost", lambda **_: alone)
    answer = json.loads(run("kernels", "explain", model, "--dtype", "float32", "--json"))
    assert answer["dtype"] == "float32"
    (attend, *_) = [op for op in answer["ops"] if op["op"] == "attn.paged"]
    assert attend["provider"].startswith("torch.")
    assert attend["shape"]["head_dim"] > 0
    assert {"why", "rejected", "numerics", "workspace_bytes", "features"} <= set(attend)
    table = run("kernels", "explain", model, "--kernels", "gemm.*=torch.reference")
    assert "Qwen3ForCausalLM" in table
    assert "named in kernels=" in table
    # The first norm of a model has no residual, the others have: two problems, told apart.
    assert "hidden_size=64, residual" in table


def test_overrides_are_parsed_or_refused_with_an_example():
    assert parse_overrides(["attn.paged=a.x, b.y", "gemm.*=c.z"]) == {
        "attn.paged": ("a.x", "b.y"),
        "gemm.*": ("c.z",),
    }
    for bad in (["attn.paged"], ["=a.x"], ["attn.paged="], ["a.b=c.d", "a.b=e.f"]):
        with pytest.raises(ConfigError, match=r"norm\.rms=example\.rms; from --kernels"):
            parse_overrides(bad)


# doctor ------------------------------------------------------------------------------------------


def findings(monkeypatch=None, *plugins):
    return {finding.name: finding for finding in examine(host_with(*plugins))}


def test_doctor_finds_this_machine_in_order():
    found = findings()
    assert {"python", "torch", "cpu", "threads", "memory", "device", "plugin"} <= set(found)
    assert found["torch"].value == importlib.metadata.version("torch")
    assert all(finding.status != "error" for finding in found.values())


def test_doctor_reports_a_failed_plugin_with_its_remedy_and_exits_with_1(run, monkeypatch):
    monkeypatch.setattr(doctor_cmd, "examine", lambda: examine(host_with(Broken())))
    answer = json.loads(run("doctor", "--json", exit_code=1))
    (error,) = [finding for finding in answer["findings"] if finding["status"] == "error"]
    assert "no driver" in error["value"]
    assert "--block broken" in error["remedy"]
    assert "--block broken" in run("doctor", exit_code=1)


def test_doctor_notes_why_a_device_is_not_there():
    class Boards(Vendor):
        @hookimpl
        def deepinfer_missing_devices(self):
            return [Reason("load acme.ko")]

    found = [finding for finding in examine(host_with(Boards())) if finding.name == "device"]
    assert [(finding.status, finding.value) for finding in found[1:]] == [("note", "load acme.ko")]


def test_what_fails_only_when_it_is_asked_is_listed_too(run, monkeypatch):
    """An engine leaves such plugins out and says that `deepinfer plugins` lists them."""
    make = host_with(Vendor(), Silent(), Copycat())
    monkeypatch.setattr(plugins_cmd, "PluginHost", make)
    listed = {plugin["name"]: plugin for plugin in json.loads(run("plugins", "--json"))["plugins"]}
    assert listed["vendor"]["state"] == "loaded"
    assert "no compiler" in listed["silent"]["failure"]["message"]
    assert "already taken by plugin vendor" in listed["copycat"]["failure"]["message"]
    errors = [finding.value for finding in examine(make) if finding.status == "error"]
    assert len(errors) == 2


def test_doctor_survives_a_broken_torch(monkeypatch):
    def fail(target):
        raise OSError("libtorch.so: undefined symbol")

    monkeypatch.setattr(doctor_checks, "load_target", fail)
    torch = findings()["torch"]
    assert (torch.status, torch.remedy) == ("error", "pip install torch")
    assert "undefined symbol" in torch.value


def test_doctor_names_the_remedy_for_a_missing_extra(monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor_checks.importlib.metadata, "version", version)
    for extra, (distribution, purpose) in EXTRAS.items():
        finding = doctor_checks._extra(extra)
        assert finding.status == "note"
        assert finding.value == f"{distribution} is not installed: no {purpose}"
        assert finding.remedy == f"pip install 'deepinfer-core[{extra}]'"


def test_doctor_warns_of_too_many_threads_and_too_little_memory(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "100000")
    monkeypatch.setattr(doctor_checks, "memory_info", lambda: (1 << 30, 8 << 30))
    found = findings()
    assert found["threads"].status == found["memory"].status == "note"
    assert found["memory"].value == "1.0 of 8.0 GiB free"


def test_doctor_knows_exactly_the_extras_of_the_package():
    project = Path(__file__).parents[3] / "deepinfer-core" / "pyproject.toml"
    declared = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert {name: names[0].split(">")[0] for name, names in declared.items()} == {
        name: distribution for name, (distribution, _) in EXTRAS.items()
    }


@pytest.mark.parametrize(
    "command", [("plugins",), ("plugins", "check"), ("kernels", "explain"), ("doctor",)]
)
def test_help_has_examples(run, command):
    text = run(*command, "--help")
    assert "Examples:" in text
    assert f"deepinfer {' '.join(command)}" in text
