"""The plugin host over in-memory plugins: what it collects, and how each failure is named."""

import logging
import os
import types

import pytest
from deepinfer_core import hookimpl
from deepinfer_core.errors import PlatformError, PluginError
from deepinfer_core.plugin_api import (
    Caps,
    CommandSpec,
    DeviceInfo,
    Issue,
    KernelPolicy,
    KernelSpec,
    ModelSpec,
    PluginInfo,
    ProposerSpec,
    Reason,
    StageSpec,
)
from deepinfer_core.plugins import PluginHost
from deepinfer_core.runtime.device import CpuRuntime

CPU = DeviceInfo(kind="cpu")
BOARD = DeviceInfo(kind="board", index=0, arch="2.0")


def plugin(api=">=1.0,<2", **hooks):
    """A module with the given functions as hook implementations."""
    module = types.ModuleType("throwaway")
    hooks.setdefault(
        "deepinfer_plugin_info", lambda: PluginInfo("throwaway", "1.2", vendor="Acme", api=api)
    )
    for name, function in hooks.items():
        function.__name__ = name
        setattr(module, name, hookimpl(function))
    return module


def kernels(*names, op="norm.rms@1"):
    return [KernelSpec(op, name, "m:f", Caps()) for name in names]


def nothing():
    return []


def raising(error):
    def hook():
        raise error

    return hook


@pytest.fixture
def host():
    return PluginHost(load_entry_points=False)


def test_built_ins_register_like_everybody_else(host):
    (core,) = host.plugins
    assert (core.name, core.distribution, core.state) == ("core", "deepinfer-core", "loaded")
    hooks = ("plugin_info", "probe", "kernels", "proposers", "grammar_backends")
    assert set(core.hooks) == {f"deepinfer_{hook}" for hook in hooks}
    assert host.failures == []
    assert [device.kind for device in host.devices()] == ["cpu"]


def test_a_good_plugin_is_described_by_its_record(host):
    record = host.register(
        plugin(
            deepinfer_probe=lambda host: [BOARD],
            deepinfer_kernels=lambda device: kernels("acme.k"),
        ),
        name="acme",
        distribution="deepinfer-acme",
        version="1.2.3",
    )
    assert record.info.api == ">=1.0,<2"
    assert record.hooks == ("deepinfer_kernels", "deepinfer_plugin_info", "deepinfer_probe")
    assert host.devices()[1:] == [BOARD]
    assert record.devices == (BOARD,)
    assert [k.provider for k in host.kernels(BOARD)][-1] == "acme.k"


def test_hooks_may_take_fewer_arguments_and_return_none_or_generators(host):
    def kernel_stream():
        yield from kernels("acme.a", "acme.b")

    host.register(plugin(deepinfer_kernels=kernel_stream), name="stream")
    host.register(plugin(deepinfer_kernels=lambda device: None), name="nothing")
    offered = [k.provider for k in host.kernels(CPU) if k.provider.startswith("acme")]
    assert offered == ["acme.a", "acme.b"]


def test_probes_are_told_about_the_host_and_asked_once(host):
    asked = []
    host.register(plugin(deepinfer_probe=lambda host: asked.append(host)), name="acme")
    host.devices()
    host.devices()
    (info,) = asked
    assert (info.api_version, info.system) == ("1.0", __import__("platform").system())


def test_a_plugin_that_registers_late_is_probed_too(host):
    host.devices()
    host.register(plugin(deepinfer_probe=lambda: [BOARD]), name="late")
    assert BOARD in host.devices()


def test_the_other_records_are_collected_with_their_types(host):
    class Facts:
        architecture, dtype, raw_config = "FooForCausalLM", "float32", {}

    policy = KernelPolicy("attn.*", ("acme.fa",), "measured")
    issue = Issue("error", "cache.block_size", "must be 32", "use 32")
    host.register(
        plugin(
            deepinfer_models=lambda: [ModelSpec("foo", "m:Foo", ("FooForCausalLM",))],
            deepinfer_commands=lambda: [CommandSpec("serve", "m:serve")],
            deepinfer_logits_stages=lambda: [StageSpec("calm", "m:Calm")],
            deepinfer_proposers=lambda: [ProposerSpec("lookup", "m:Lookup")],
            deepinfer_kernel_policy=lambda device, model: [policy] * (model.dtype == "float32"),
            deepinfer_check_config=lambda config, device: [issue],
        ),
        name="acme",
    )
    assert host.models()[0].architectures == ("FooForCausalLM",)
    assert host.commands()[0].name == "serve"
    assert host.logits_stages()[0].target == "m:Calm"
    assert host.targets(ProposerSpec)[0].runs_on == "host"
    assert host.kernel_policies(CPU, Facts()) == [policy]
    assert host.check_config(None, CPU) == [issue]
    assert host.recipes() == []


def test_plugins_are_asked_in_the_order_of_registration_with_core_first(host):
    for name in ("b", "a"):
        host.register(
            plugin(deepinfer_kernels=lambda n=name: kernels(f"{n}.k")),
            name=name,
        )
    providers = [k.provider for k in host.kernels(CPU)]
    assert providers[0].startswith("torch.")
    assert providers[-2:] == ["b.k", "a.k"]


BAD_ANSWERS = {
    "a record instead of a list": (lambda: kernels("a.k")[0], "not an iterable of KernelSpec"),
    "text": (lambda: "a.k", "not an iterable of KernelSpec"),
    "another record": (lambda: [BOARD], "not a KernelSpec"),
    "an unknown op": (lambda: kernels("a.k", op="norm.rmss@1"), "did you mean norm.rms?"),
    "no major": (lambda: kernels("a.k", op="norm.rms"), "'family.name@major'"),
    "a provider without vendor": (lambda: kernels("fast"), "'vendor.name'"),
    "an eager target": (
        lambda: [KernelSpec("norm.rms@1", "a.k", print)],
        "must be a string 'module:attribute'",
    ),
    "a bad plan": (lambda: [KernelSpec("norm.rms@1", "a.k", "m:f", plan="m")], "'m'"),
    "an unknown feature": (
        lambda: [KernelSpec("norm.rms@1", "a.k", "m:f", Caps(features=frozenset({"warp"})))],
        "unknown warp",
    ),
    "one dtype as text": (
        lambda: [KernelSpec("norm.rms@1", "a.k", "m:f", Caps(dtypes="float32"))],
        "caps.dtypes is 'float32', not a collection",
    ),
    "one claim twice": (
        lambda: kernels("a.k", "a.k"),
        "a.k of norm.rms@1 is listed twice",
    ),
    "an exception": (raising(OSError("no\ndriver")), "OSError: no driver"),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_a_bad_answer_is_one_line_that_names_plugin_version_and_hook(host, case, caplog):
    hook, message = BAD_ANSWERS[case]
    record = host.register(
        plugin(deepinfer_kernels=hook),
        name="bad",
        distribution="deepinfer-bad",
        version="0.3",
        is_named=False,
    )
    with caplog.at_level(logging.WARNING):
        assert {k.provider.split(".")[0] for k in host.kernels(CPU)} == {"torch"}
    (line,) = [r.getMessage() for r in caplog.records]
    assert "\n" not in line
    assert line.startswith("plugin deepinfer-bad 0.3 in deepinfer_kernels: ")
    assert message in line
    assert record.state == "failed"
    assert host.failures == [record.failure]
    assert (record.failure.distribution, record.failure.version, record.failure.hook) == (
        "deepinfer-bad", "0.3", "deepinfer_kernels",
    )  # fmt: skip
    # It is out: asked no more, and complained about no more.
    host.kernels(CPU)
    assert len(host.failures) == 1


def test_the_failure_of_a_named_plugin_is_fatal(host):
    host.register(plugin(deepinfer_kernels=raising(OSError("no driver"))), name="bad")
    with pytest.raises(PluginError, match="OSError: no driver") as caught:
        host.kernels(CPU)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("name", ["acme", "deepinfer-acme"])
def test_naming_a_provider_names_its_plugin(host, name):
    """`kernels={"norm.rms": "acme.rms"}` is a request for that plugin: it must not fail quietly."""
    failing = plugin(deepinfer_kernels=raising(OSError("no driver")))
    record = host.register(failing, name="acme", distribution=name, is_named=False)
    assert host.kernels(CPU, named_providers=["torch.reference", "other.k"])
    with pytest.raises(PluginError, match="no driver"):
        host.kernels(CPU, named_providers=["acme.rms"])
    assert record.state == "failed"


def test_naming_the_provider_of_a_plugin_before_it_is_asked_makes_its_failure_fatal(host):
    failing = plugin(deepinfer_kernels=raising(OSError("no driver")))
    host.register(failing, name="acme", is_named=False)
    with pytest.raises(PluginError, match="no driver"):
        host.kernels(CPU, named_providers=["acme.rms"])


def test_the_failure_of_a_plugin_that_the_device_needs_is_fatal(host):
    def hook(device):
        raise OSError("no driver")

    host.register(
        plugin(deepinfer_probe=lambda: [BOARD], deepinfer_kernels=hook), name="x", is_named=False
    )
    device = host.find_device("board")
    with pytest.raises(PluginError, match="no driver"):
        host.kernels(device)


def test_a_failing_plugin_that_only_adds_kernels_for_the_cpu_is_not_fatal(host):
    record = host.register(plugin(deepinfer_kernels=raising(OSError())), name="cpu", is_named=False)
    assert host.kernels(host.find_device("cpu"))
    assert record.state == "failed"


def test_records_of_a_plugin_that_fails_half_way_are_dropped(host):
    def half():
        yield from kernels("acme.k")
        raise OSError("gone")

    host.register(plugin(deepinfer_kernels=half), name="a", is_named=False)
    host.register(plugin(deepinfer_kernels=lambda: kernels("acme.k")), name="b")
    assert [k.provider for k in host.kernels(CPU)].count("acme.k") == 1


def test_two_plugins_with_one_provider_or_name_clash_and_both_are_named(host):
    for name in ("first", "second"):
        host.register(
            plugin(
                deepinfer_kernels=lambda: kernels("acme.k"),
                deepinfer_commands=lambda: [CommandSpec("serve", "m:serve")],
            ),
            name=name,
        )
    with pytest.raises(PluginError, match=r"second.*provider acme\.k.*taken by plugin first"):
        host.kernels(CPU)


def test_an_unnamed_clash_costs_the_later_plugin_only(host):
    for name in ("first", "second"):
        host.register(
            plugin(deepinfer_commands=lambda n=name: [CommandSpec("serve", f"{n}:serve")]),
            name=name,
            is_named=False,
        )
    assert [c.target for c in host.commands()] == ["first:serve"]
    assert "serve is already taken by plugin first (first)" in str(host.failures[0])


# Registration ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ({"deepinfer_kernel": nothing}, "unknown hook deepinfer_kernel; did you mean deepinfer_"),
        ({"deepinfer_xyzzy": nothing}, "unknown hook deepinfer_xyzzy; hooks are"),
        ({"deepinfer_kernels": lambda device, model: []}, "model"),
        ({"deepinfer_plugin_info": lambda: "me"}, "returned 'me', which is not a PluginInfo"),
        ({"deepinfer_plugin_info": raising(OSError("dead"))}, "OSError: dead"),
        (
            {"deepinfer_plugin_info": lambda: PluginInfo("a", "1", "A", api=1)},
            "not a version range",
        ),
    ],
)
def test_a_plugin_that_does_not_fit_the_contract_is_refused(host, hooks, message):
    with pytest.raises(PluginError) as caught:
        host.register(plugin(**hooks), name="bad")
    assert message in str(caught.value)
    assert host.plugins[1].state == "failed"
    # Nothing of it stays behind: a repaired one can take its place.
    assert host.register(plugin(), name="bad").state == "loaded"


def test_a_plugin_without_info_or_without_a_mark_is_refused(host):
    with pytest.raises(PluginError, match="deepinfer_plugin_info: is missing"):
        host.register(types.ModuleType("empty"), name="empty")
    module = plugin()
    module.deepinfer_kernels = lambda: kernels("a.k")
    with pytest.raises(PluginError, match="deepinfer_kernels is not marked with @hookimpl"):
        host.register(module, name="unmarked")


def test_hook_wrappers_are_refused(host):
    module = plugin()

    def deepinfer_kernels():
        return (yield)

    module.deepinfer_kernels = hookimpl(wrapper=True)(deepinfer_kernels)
    with pytest.raises(PluginError, match="wrappers cannot work"):
        host.register(module, name="wrapper")


def test_an_unknown_hook_may_be_optional(host):
    module = plugin()
    module.deepinfer_future = hookimpl(optionalhook=True)(nothing)
    assert host.register(module, name="future").state == "loaded"


def test_objects_with_methods_are_plugins_too(host):
    class Vendor:
        @hookimpl
        def deepinfer_plugin_info(self):
            return PluginInfo("vendor", "1", "V", api=">=1.0")

        @hookimpl
        def deepinfer_kernels(self, device):
            return kernels("vendor.k")

    host.register(Vendor(), name="vendor")
    assert host.kernels(CPU)[-1].provider == "vendor.k"


@pytest.mark.parametrize(
    ("api", "remedy"), [("<1", "upgrade the plugin"), (">=2", "upgrade deepinfer-core")]
)
def test_version_handshake_names_both_versions(host, api, remedy):
    record = host.register(plugin(api=api), name="old", version="7", is_named=False)
    assert str(record.failure) == (
        f"plugin old 7 in deepinfer_plugin_info: it needs plugin API {api}, "
        f"this deepinfer-core serves 1.0; {remedy}"
    )


def test_a_plugin_is_another_build_after_a_change_of_any_of_its_sources(host, tmp_path):
    record = host.register(plugin(), name="a", version="7")
    assert (record.build, host.plugins[0].build) == ("7", host.plugins[0].version)
    record.plugin.__file__ = str(tmp_path / "plugin.py")
    for name in ("plugin.py", "fast.cu", "plugin.pyc"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, ns=(5, len(name)))
    assert record.build == "7 9"  # a module has no other files
    (tmp_path / "__init__.py").touch()
    os.utime(tmp_path / "__init__.py", ns=(5, 5))
    assert record.build == "7 9"
    os.utime(tmp_path / "fast.cu", ns=(5, 6000))
    assert record.build == "7 6000"


# Devices -----------------------------------------------------------------------------------------


def test_auto_takes_the_first_accelerator_else_the_cpu(host):
    assert host.find_device().kind == "cpu"
    host.register(plugin(deepinfer_probe=lambda: [BOARD]), name="board")
    assert host.find_device() == BOARD
    assert host.find_device("cpu").kind == "cpu"
    assert host.find_device("board", 0) == BOARD


def test_a_missing_device_says_what_was_wanted_and_found(host):
    host.register(plugin(deepinfer_probe=lambda: [BOARD]), name="board")
    with pytest.raises(PlatformError, match="wanted device board:1, found cpu:0, board:0"):
        host.find_device("board", 1)


def test_a_missing_device_comes_with_what_its_plugin_says_of_it(host):
    host.register(
        plugin(deepinfer_missing_devices=lambda host: [Reason("load acme.ko")]), name="board"
    )
    assert [reason.text for reason in host.missing_devices()] == ["load acme.ko"]
    with pytest.raises(PlatformError, match=r"found cpu:0; load acme\.ko; plugins: "):
        host.find_device("board")


def test_asking_for_the_device_of_a_failed_plugin_raises_its_failure(host):
    host.register(plugin(deepinfer_probe=raising(OSError("no driver"))), name="b", is_named=False)
    assert [device.kind for device in host.devices()] == ["cpu"]
    with pytest.raises(PluginError, match="no driver"):
        host.find_device("b")


class BoardRuntime:
    kind, index, torch_device = "board", 0, "board:0"
    supports_graphs, collectives_backend = False, "none"

    def activate(self): ...
    def synchronize(self): ...
    def memory_info(self):
        return 1, 2

    def create_event(self): ...
    def stream(self): ...
    def pinned_empty(self, shape, dtype): ...
    def capture(self, function): ...


def runtime_plugin(runtime=None):
    return plugin(
        deepinfer_device_runtime=lambda device: runtime if device.kind == "board" else None
    )


def test_a_plugin_may_drive_its_device_and_core_drives_the_cpu(host):
    runtime = BoardRuntime()
    host.register(runtime_plugin(runtime), name="board")
    assert host.device_runtime(BOARD) is runtime
    assert isinstance(host.device_runtime(CPU), CpuRuntime)


def test_two_runtimes_for_one_device_are_an_error_that_names_both(host):
    for name in ("one", "two"):
        host.register(runtime_plugin(BoardRuntime()), name=name, version="9", is_named=False)
    with pytest.raises(PluginError, match="one 9 and two 9 both drive board:0; block one"):
        host.device_runtime(BOARD)
    assert host.device_runtime(CPU).kind == "cpu"


def test_a_machine_at_fault_is_not_blamed_on_the_plugin(host):
    def refuse(device):
        if device.kind == "board":
            raise PlatformError("the driver is too old")

    record = host.register(plugin(deepinfer_device_runtime=refuse), name="board")
    with pytest.raises(PlatformError, match=r"^the driver is too old$"):
        host.device_runtime(BOARD)
    assert record.state == "loaded"


def test_what_is_no_runtime_is_refused(host):
    host.register(runtime_plugin(object()), name="bad")
    with pytest.raises(PluginError, match="not a DeviceRuntime"):
        host.device_runtime(BOARD)


def test_a_device_that_nobody_drives_is_an_error(host):
    with pytest.raises(PlatformError, match=r"wanted a runtime for board:0.*drives"):
        host.device_runtime(BOARD)
