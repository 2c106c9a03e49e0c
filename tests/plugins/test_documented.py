"""The code in the documents about plugins runs, and does what the text around it says."""

import re
import types
from pathlib import Path

import pytest
from deepinfer_core import hookimpl, plugin_api
from deepinfer_core.config import EngineConfig
from deepinfer_core.plugin_api import (
    DeviceInfo,
    GrammarBackendSpec,
    KVConnectorSpec,
    ProposerSpec,
    QuantSchemeSpec,
    StatLoggerSpec,
)
from deepinfer_core.plugin_checks import HOOKS
from deepinfer_core.plugins import PluginHost
from deepinfer_core.runtime.device import CpuRuntime

ROOT = Path(__file__).parents[2]
ACME = DeviceInfo(kind="acme", index=1, arch="2.0")


def python_blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def run(code, **names):
    """Execute a block as a module of its own."""
    module = types.ModuleType("documented")
    vars(module).update(names)
    exec(compile(code, "documented", "exec"), vars(module))
    return module


class AcmeRuntime(CpuRuntime):
    """What the example of `deepinfer_device_runtime` leaves to the reader."""

    kind = "acme"

    def __init__(self, index):
        self.index = index


@pytest.fixture(scope="module")
def host():
    """A host with all the examples of the page of hooks as one plugin."""
    page = (ROOT / "docs/plugins.md").read_text()
    hooks = page[page.index("<!-- generated: hooks -->") : page.index("<!-- end: hooks -->")]
    examples = re.findall(r"^```python\n(@hookimpl\n.*?)^```", hooks, re.DOTALL | re.MULTILINE)
    assert len(examples) == len(HOOKS)
    names = {name: getattr(plugin_api, name) for name in plugin_api.__all__}
    names |= {"hookimpl": hookimpl, "AcmeRuntime": AcmeRuntime, "count_boards": lambda: 2}
    names |= {"driver_answers": lambda: False}
    host = PluginHost(load_entry_points=False)
    host.register(run("\n".join(examples), **names), name="acme")
    return host


def test_the_examples_are_one_plugin_with_every_hook(host):
    record = host.plugins[1]
    assert (record.info.name, record.info.version, record.state) == ("acme", "1.2", "loaded")
    assert set(record.hooks) == set(HOOKS)


def test_the_example_devices_are_found_and_driven(host):
    assert [d.arch for d in host.devices() if d.kind == "acme"] == ["2.0", "2.0"]
    runtime = host.device_runtime(ACME)
    assert (type(runtime), runtime.index) == (AcmeRuntime, 1)
    assert type(host.device_runtime(host.find_device("cpu"))) is CpuRuntime


def test_the_example_says_why_devices_are_missing(host):
    assert [reason.text for reason in host.missing_devices()] == [
        "the driver of Acme boards does not answer; load acme.ko"
    ]


def test_the_example_kernel_arrives(host):
    kernel = host.kernels(ACME)[-1]
    assert (kernel.op, kernel.provider) == ("norm.rms@1", "acme.fused")
    assert kernel.caps.device_kinds == ("acme",)


def test_the_example_policy_and_complaint_are_about_what_they_say(host):
    class Facts:
        architecture, dtype = "C", "float32"
        raw_config = {"num_key_value_heads": 1}  # noqa: RUF012

    (policy,) = host.kernel_policies(ACME, Facts())
    assert policy.providers == ("acme.mqa",)
    Facts.raw_config = {"num_key_value_heads": 8}
    assert host.kernel_policies(ACME, Facts()) == []
    (issue,) = host.check_config(EngineConfig.from_flat("m", block_size=16), ACME)
    assert (issue.severity, issue.path) == ("error", "cache.block_size")
    assert host.check_config(EngineConfig.from_flat("m", block_size=32), ACME) == []


def test_every_other_example_gives_one_record(host):
    kinds = (QuantSchemeSpec, ProposerSpec, GrammarBackendSpec, KVConnectorSpec, StatLoggerSpec)
    built_in = PluginHost(load_entry_points=False)
    for records in (
        host.kv_layouts(ACME),
        host.models(),
        host.recipes(),
        host.commands(),
        host.logits_stages(),
        *(host.targets(kind)[len(built_in.targets(kind)) :] for kind in kinds),
    ):
        assert len(records) == 1
    assert host.failures == []


def test_the_plugin_in_the_readme_is_complete():
    (code,) = [b for b in python_blocks(ROOT / "README.md") if "@hookimpl" in b]
    host = PluginHost(load_entry_points=False)
    record = host.register(run(code), name="acme")
    assert record.state == "loaded"
    assert host.kernels(host.find_device())[-1].provider == "acme.silu"


def test_the_host_for_tests_is_as_shown():
    (code,) = [b for b in python_blocks(ROOT / "docs/plugins.md") if "host.register(" in b]
    (plugin,) = [b for b in python_blocks(ROOT / "README.md") if "@hookimpl" in b]
    assert run(code, my_plugin=run(plugin)).host.plugins[1].name == "acme"
