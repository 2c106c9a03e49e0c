"""The op table: binding, sharing, freezing, adapters and plans."""

import dataclasses
import logging
import sys
import types

import pytest
from deepinfer_core.errors import ConfigError, EngineError, PluginError, UnsupportedOpError
from deepinfer_core.ops.spec import make_spec
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugin_api import Caps, DeviceInfo, KernelSpec

CPU = DeviceInfo(kind="cpu")
EVERYTHING = Caps(
    device_kinds=("*",),
    dtypes=("float32", "float16"),
    features=frozenset({"window", "deterministic"}),
    schemes=("int8_token",),
)


def double(x):
    """Double a number."""
    return 2 * x


def negative_double(x, sign):
    """Previous major: wants a sign."""
    return 2 * x * sign


SPECS = {
    "fake.double": make_spec("fake.double", double, major=2, tier=0, previous="fakes:adapt"),
    "fake.other": make_spec("fake.other", double, major=1, tier=0),
}


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    module = types.ModuleType("fakes")
    module.double = double
    module.old_double = negative_double
    module.adapt = lambda fn: lambda x: fn(x, 1)
    module.plan = lambda problem, meta: ("plan", problem.op, meta)
    monkeypatch.setitem(sys.modules, "fakes", module)
    return module


def kernel(op="fake.double@2", provider="a.k", target="fakes:double", **fields):
    return KernelSpec(op=op, provider=provider, target=target, caps=EVERYTHING, **fields)


def table(*kernels, device=CPU, **options):
    return make_op_table(kernels, device=device, specs=SPECS, **options)


def test_a_bound_op_is_called_like_the_op():
    bound = table(kernel()).bind("fake.double", dtype="float32", role="mlp", n=3)
    assert bound(4) == 8
    assert bound(x=4) == 8
    assert bound.provider == "a.k"
    assert bound.problem.dim("n") == 3
    assert bound.problem.dim("m") is None


def test_equal_problems_share_one_bound_op_and_one_choice():
    ops = table(kernel())
    first = ops.bind("fake.double", dtype="float32", role="mlp", a=1, b=2)
    assert ops.bind("fake.double", dtype="float32", role="mlp", b=2, a=1) is first
    assert ops.bind("fake.double", dtype="float32", role="attn", a=1, b=2) is not first
    assert [choice.problem.role for choice in ops.choices()] == ["mlp", "attn"]


def test_plan_keys_are_equal_exactly_when_a_plan_can_be_shared():
    ops = table(kernel(plan="fakes:plan"), kernel("fake.other@1"))
    base = {"dtype": "float32", "kv_dtype": None, "features": ("window",), "head_dim": 64}
    key = ops.bind("fake.double", role="layer.0", **base).plan_key
    assert ops.bind("fake.double", role="layer.1", **base).plan_key == key
    for change in ({"dtype": "float16"}, {"features": ()}, {"head_dim": 128}, {"heads": 4},
                   {"kv_dtype": "float32"}, {"scheme": "int8_token"}):  # fmt: skip
        assert ops.bind("fake.double", **{**base, **change}).plan_key != key
    assert ops.bind("fake.other", **base).plan_key != key


def test_planners_are_one_for_each_plan_key():
    ops = table(kernel(plan="fakes:plan"), kernel("fake.other@1"))
    for role in ("layer.0", "layer.1"):
        ops.bind("fake.double", dtype="float32", role=role, head_dim=64)
    ops.bind("fake.double", dtype="float32", role="layer.2", head_dim=128)
    ops.bind("fake.other", dtype="float32")
    planners = ops.planners()
    assert sorted(p.problem.dim("head_dim") for p in planners) == [64, 128]
    assert planners[0].plan_fn(planners[0].problem, "meta") == ("plan", "fake.double", "meta")


def test_nothing_new_can_be_bound_after_freeze():
    ops = table(kernel())
    bound = ops.bind("fake.double", dtype="float32")
    ops.freeze()
    ops.freeze()
    assert bound(1) == 2
    assert ops.bind("fake.double", dtype="float32") is bound
    with pytest.raises(EngineError, match="after the op table froze"):
        ops.bind("fake.double", dtype="float16")
    assert len(ops.choices()) == 1


def test_a_kernel_of_the_previous_major_serves_through_the_adapter():
    old = kernel("fake.double@1", provider="old.k", target="fakes:old_double")
    assert table(old).bind("fake.double", dtype="float32")(3) == 6


def test_unknown_ops_and_features_are_bugs_of_the_caller():
    with pytest.raises(EngineError, match=r"no op is named fake\.triple"):
        table(kernel()).bind("fake.triple", dtype="float32")
    with pytest.raises(EngineError, match="tachyons"):
        table(kernel()).bind("fake.double", dtype="float32", features=("tachyons",))


def test_filters_and_overrides_reach_selection():
    sure = kernel(provider="b.sure")
    unsure = KernelSpec(
        "fake.double@2", "a.unsure", "fakes:double", Caps(dtypes=("float32",)), priority=30
    )
    assert table(sure, unsure).bind("fake.double", dtype="float32").provider == "a.unsure"
    ops = table(sure, unsure, deterministic=True)
    assert ops.bind("fake.double", dtype="float32").provider == "b.sure"
    with pytest.raises(UnsupportedOpError, match="batch_invariant"):
        table(sure, unsure, batch_invariant=True).bind("fake.double", dtype="float32")
    named = table(sure, unsure, overrides={"fake.*": "b.sure"})
    assert named.bind("fake.double", dtype="float32").provider == "b.sure"
    listed = table(sure, unsure, overrides={"*": ("b.sure", "a.unsure")})
    assert listed.bind("fake.double", dtype="float32").provider == "b.sure"


def test_overrides_must_name_ops_and_providers_that_exist():
    with pytest.raises(ConfigError, match=r"device\.kernels = 'fake\.dubble'.*fake\.double"):
        table(kernel(), overrides={"fake.dubble": "a.k"})
    with pytest.raises(ConfigError, match=r"'a\.x'; allowed: a\.k") as caught:
        table(kernel(), overrides={"fake.double": ("a.k", "a.x")})
    assert caught.value.field == "device.kernels"


@pytest.mark.parametrize("target", ["nowhere:f", "fakes:missing"])
def test_a_chosen_kernel_that_cannot_be_imported_is_an_error_not_a_fallback(target):
    broken = kernel(provider="z.broken", target=target, priority=30)
    with pytest.raises(PluginError, match=r"z\.broken of fake\.double cannot be imported"):
        table(kernel(), broken).bind("fake.double", dtype="float32")


def test_kernels_are_imported_only_when_chosen():
    ops = table(kernel(), kernel(provider="z.unused", target="nowhere:f", priority=0))
    assert ops.bind("fake.double", dtype="float32").provider == "a.k"


def alternative(*kernels, device=CPU, **options):
    ops = table(*kernels, device=device, **options)
    bound = ops.bind("fake.double", dtype="float16", role="mlp", features=("window",), n=3)
    return ops.bind_alternative(bound, "fake.other", m=4)


def test_an_alternative_is_asked_for_what_the_bound_op_is():
    problem = alternative(kernel(), kernel("fake.other@1")).problem
    assert (problem.op, problem.dtype, problem.role) == ("fake.other", "float16", "mlp")
    assert (problem.features, problem.shape) == ({"window"}, (("m", 4), ("n", 3)))


def test_an_alternative_is_optional():
    other = kernel("fake.other@1")
    reference = kernel("fake.other@1", priority=0)
    accelerator = DeviceInfo(kind="acme")
    assert alternative(kernel()) is None  # nothing serves
    assert alternative(kernel(), reference) is None  # it would take work from a plugin's kernel
    assert alternative(kernel(), other) is not None
    assert alternative(kernel(priority=0), reference) is not None
    assert alternative(kernel(), reference, device=accelerator, strict=True) is None


def test_no_alternative_where_bits_must_not_depend_on_the_choice():
    invariant = dataclasses.replace(EVERYTHING, features=frozenset({"window", "batch_invariant"}))
    both = [dataclasses.replace(k, caps=invariant) for k in (kernel(), kernel("fake.other@1"))]
    assert alternative(*both) is not None
    assert alternative(*both, batch_invariant=True) is None


def test_a_kernel_named_for_the_alternative_must_serve():
    unable = dataclasses.replace(kernel("fake.other@1"), caps=Caps(dtypes=("float32",)))
    assert alternative(kernel(), unable, overrides={"fake.*": "a.k"}) is None
    with pytest.raises(UnsupportedOpError, match="dtype float16"):
        alternative(kernel(), unable, overrides={"fake.other": "a.k"})


def fused(*kernels, **options):
    ops = table(*kernels, **options)
    bound = ops.bind_fused("fake.other", dtype="float16", role="mlp", features=("window",), n=3)
    return bound, ops.choices()


def test_a_fused_op_is_bound_where_a_plugin_has_a_kernel():
    bound, choices = fused(
        kernel("fake.other@1", priority=0, provider="z.z"), kernel("fake.other@1")
    )
    assert bound.provider == "a.k"
    assert (bound.problem.role, bound.problem.features) == ("mlp", {"window"})
    assert bound.problem.shape == (("n", 3),)
    assert [choice.op for choice in choices] == ["fake.other"]


def test_a_fused_op_is_left_alone_where_none_has():
    """And leaves no choice behind, which would count as a reference in the model."""
    unable = dataclasses.replace(kernel("fake.other@1"), caps=Caps(dtypes=("float32",)))
    for offered in ([kernel()], [kernel("fake.other@1", priority=0)], [unable]):
        assert fused(*offered) == (None, [])
    accelerator = DeviceInfo(kind="acme")
    reference = kernel("fake.other@1", priority=0)
    assert fused(reference, device=accelerator, strict=True) == (None, [])
    assert fused(kernel("fake.other@1"), batch_invariant=True) == (None, [])


def test_a_kernel_named_for_the_fused_op_must_serve():
    unable = dataclasses.replace(kernel("fake.other@1"), caps=Caps(dtypes=("float32",)))
    assert fused(kernel(), unable, overrides={"fake.*": "a.k"})[0] is None
    with pytest.raises(UnsupportedOpError, match="dtype float16"):
        fused(kernel(), unable, overrides={"fake.other": "a.k"})


def test_freeze_says_once_which_hot_ops_run_on_references(caplog):
    board = DeviceInfo(kind="board")
    ops = table(kernel(priority=0), kernel("fake.other@1"), device=board)
    for role in ("a", "b"):
        ops.bind("fake.double", dtype="float32", role=role)
    ops.bind("fake.other", dtype="float32")
    with caplog.at_level(logging.WARNING):
        ops.freeze()
    (record,) = caplog.records
    assert "reference kernels serve fake.double on board" in record.getMessage()
    assert "fake.other" not in record.getMessage()
