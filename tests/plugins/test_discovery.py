"""Discovery over real `dist-info` folders on `sys.path`: failures are named and stay alone."""

import logging
import sys
import textwrap

import pytest
from deepinfer_core.errors import PluginError
from deepinfer_core.plugin_api import DeviceInfo
from deepinfer_core.plugins import PluginHost

CPU = DeviceInfo(kind="cpu")

GOOD = """
    from deepinfer_core import hookimpl
    from deepinfer_core.plugin_api import Caps, KernelSpec, PluginInfo

    @hookimpl
    def deepinfer_plugin_info():
        return PluginInfo("good", "1", "Acme", api="{api}")

    @hookimpl
    def deepinfer_kernels(device):
        {kernels}
"""


def source(kernels='return [KernelSpec("norm.rms@1", "good.k", "m:f", Caps())]', api=">=1.0,<2"):
    return GOOD.format(kernels=kernels, api=api)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put distributions with one plugin module each on `sys.path`, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = []

    def put(name, code, *, version="1.0", entry=None):
        module = f"throwaway_{name}"
        modules.append(module)
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(code))
        info = tmp_path / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: deepinfer-{name}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(f"[deepinfer]\n{entry or name} = {module}\n")
        return module

    yield put
    for module in modules:
        sys.modules.pop(module, None)


def record_of(host, distribution):
    (record,) = [r for r in host.plugins if r.distribution == distribution]
    return record


def test_an_installed_plugin_is_found_with_its_distribution_and_version(install):
    install("good", source(), version="1.2.3", entry="acme")
    record = record_of(PluginHost(), "deepinfer-good")
    assert (record.name, record.version, record.state) == ("acme", "1.2.3", "loaded")
    assert not record.is_slow


BAD = {
    "raises at import": ("raise OSError('acme.so:\\nnone')", "import", "OSError: acme.so: none"),
    "exits at import": ("import sys; sys.exit(3)", "import", "SystemExit: 3"),
    "is not python": ("def (", "import", "SyntaxError"),
    "imports what is not there": ("import no_such_vendor", "import", "no_such_vendor"),
    "too old": (source(api=">=0.1,<1"), "deepinfer_plugin_info", "upgrade the plugin"),
    "too new": (source(api=">=2,<3"), "deepinfer_plugin_info", "upgrade deepinfer-core"),
    "unknown hook": (
        source().replace("deepinfer_kernels", "deepinfer_kernel"), "register", "unknown hook"
    ),
    "raises in a hook": (source("raise OSError('no driver')"), "deepinfer_kernels", "no driver"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_plugin_is_one_clear_line_and_costs_nobody_else(install, caplog, case):
    code, hook, message = BAD[case]
    install("bad", code, version="0.7")
    install("good", source())
    with caplog.at_level(logging.WARNING):
        host = PluginHost()
        providers = [kernel.provider for kernel in host.kernels(CPU)]
    assert "good.k" in providers
    lines = [r.getMessage() for r in caplog.records if "deepinfer-bad" in r.getMessage()]
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert lines[0].startswith(f"plugin deepinfer-bad 0.7 in {hook}: ")
    assert message in lines[0]
    record = record_of(host, "deepinfer-bad")
    assert (record.state, record.failure.hook) == ("failed", hook)


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", ["bad", "deepinfer-bad", "Deepinfer_Bad"])
def test_a_bad_plugin_that_was_named_is_fatal(install, case, name):
    code, hook, message = BAD[case]
    install("bad", code)
    with pytest.raises(PluginError) as caught:
        PluginHost(allow=[name]).kernels(CPU)
    assert message in str(caught.value)
    assert (caught.value.distribution, caught.value.hook) == ("deepinfer-bad", hook)


@pytest.mark.parametrize("name", ["bad", "deepinfer-bad", "deepinfer_bad"])
def test_a_blocked_plugin_is_not_even_imported(install, name):
    module = install("bad", "raise OSError('imported')")
    host = PluginHost(block=[name])
    record = record_of(host, "deepinfer-bad")
    assert (record.state, record.failure, record.plugin) == ("blocked", None, None)
    assert module not in sys.modules
    assert host.failures == []


def test_an_allow_list_leaves_all_others_unimported(install):
    module = install("bad", "raise OSError('imported')")
    install("good", source())
    host = PluginHost(allow=["good"])
    assert record_of(host, "deepinfer-good").state == "loaded"
    assert record_of(host, "deepinfer-bad").state == "blocked"
    assert module not in sys.modules


def test_an_empty_allow_list_loads_built_ins_only(install):
    install("good", source())
    assert record_of(PluginHost(allow=[]), "deepinfer-good").state == "blocked"


def test_allowing_what_is_not_installed_or_blocked_says_so(install):
    install("good", source())
    with pytest.raises(PluginError, match=r"plugin acme .*not installed.*good \(deepinfer-good\)"):
        PluginHost(allow=["acme"])
    with pytest.raises(PluginError, match="both asked for and blocked"):
        PluginHost(allow=["good"], block=["deepinfer-good"])


def test_naming_a_provider_names_a_plugin_that_could_not_even_be_imported(install):
    install("acme", "raise OSError('no driver')", entry="board")
    host = PluginHost()
    assert host.kernels(CPU)
    with pytest.raises(PluginError, match=r"deepinfer-acme 1\.0 in import: OSError: no driver"):
        host.kernels(CPU, named_providers=["acme.fa"])


def test_without_entry_points_nothing_is_looked_for(install):
    install("bad", "raise OSError('imported')")
    assert [record.name for record in PluginHost(load_entry_points=False).plugins] == ["core"]


def test_a_slow_import_is_measured_and_told(install, caplog):
    install("slow", "import time; time.sleep(1.05)\n" + textwrap.dedent(source()))
    with caplog.at_level(logging.WARNING):
        record = record_of(PluginHost(), "deepinfer-slow")
    assert (record.is_slow, record.state) == (True, "loaded")
    assert 1.0 < record.import_s < 10
    assert any("slow (deepinfer-slow) took 1." in r.getMessage() for r in caplog.records)


def test_two_plugins_for_one_device_clash_and_both_are_named(install):
    runtime = """
        class Runtime:
            kind, index, torch_device = "board", 0, "cpu"
            supports_graphs, collectives_backend = False, "none"
            activate = synchronize = memory_info = create_event = stream = lambda self: None
            pinned_empty = capture = lambda self: None

        @hookimpl
        def deepinfer_device_runtime(device):
            return Runtime() if device.kind == "board" else None
    """
    for name in ("one", "two"):
        code = textwrap.dedent(source(f'return [KernelSpec("norm.rms@1", "{name}.k", "m:f")]'))
        install(name, code + textwrap.dedent(runtime), version="4.2")
    host = PluginHost()
    with pytest.raises(
        PluginError, match=r"deepinfer-one 4\.2 and deepinfer-two 4\.2 both drive board:0"
    ):
        host.device_runtime(DeviceInfo(kind="board"))
    blocked = PluginHost(block=["two"])
    assert blocked.device_runtime(DeviceInfo(kind="board")).kind == "board"


def test_plugins_are_asked_in_the_order_of_their_names_not_of_the_path(install):
    for name in ("zebra", "ape", "mole"):
        install(name, source(f'return [KernelSpec("norm.rms@1", "{name}.k", "m:f")]'))
    providers = [kernel.provider for kernel in PluginHost().kernels(CPU)]
    ours = [p for p in providers if p.split(".")[0] in ("zebra", "ape", "mole")]
    assert ours == ["ape.k", "mole.k", "zebra.k"]


def test_an_entry_point_may_name_an_object(install, tmp_path):
    code = textwrap.dedent(source()) + "\nimport sys\nvendor = sys.modules[__name__]\n"
    module = install("object", code)
    points = next(tmp_path.glob("*.dist-info")) / "entry_points.txt"
    points.write_text(f"[deepinfer]\nobject = {module}:vendor\n")
    assert record_of(PluginHost(), "deepinfer-object").state == "loaded"
