"""A kernel that does not compile gives way to the next in rank, or stops the engine if named."""

import logging
import sys
import types

import pytest
from deepinfer_core.errors import UnsupportedOpError
from deepinfer_core.ops.spec import make_spec
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugin_api import Caps, DeviceInfo, KernelSpec

BOARD = DeviceInfo(kind="board", arch="2.0")
INVARIANT = frozenset({"batch_invariant"})
CAPS = Caps(device_kinds=("*",), dtypes=("float32", "float16"), features=INVARIANT)


class CompileError(Exception):
    pass


def double(x, plan=None):
    """Double a number."""
    return 2 * x, plan


SPECS = {"fake.double": make_spec("fake.double", double, major=1, tier=0)}


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    """Kernels by name; what `broken` raises is `error`."""
    module = types.ModuleType("fakes")
    module.error = CompileError("no  such\ninstruction")
    module.num_calls = 0

    def broken(x, plan=None):
        module.num_calls += 1
        raise module.error

    module.broken, module.double = broken, double
    module.why = lambda error: str(error) if isinstance(error, CompileError) else None
    module.plan = lambda problem, meta: "a plan of the other kernel"
    module.prepare = lambda problem, weight: weight
    monkeypatch.setitem(sys.modules, "fakes", module)
    return module


def kernel(provider, target, priority, **fields):
    fields = {"compile_failure": "fakes:why", **fields}
    return KernelSpec(
        "fake.double@1", provider, f"fakes:{target}", CAPS, priority=priority, **fields
    )


BROKEN = kernel("a.broken", "broken", 30)
ALSO_BROKEN = kernel("b.broken", "broken", 20)
SOUND = kernel("c.sound", "double", 10)


def table(*kernels, **options):
    return make_op_table(kernels, device=BOARD, specs=SPECS, **options)


def test_the_next_in_rank_serves_and_the_choice_says_why(caplog, fakes):
    ops = table(BROKEN, ALSO_BROKEN, SOUND)
    bound = ops.bind("fake.double", dtype="float32", n=3)
    ops.freeze()
    assert bound.provider == "a.broken"
    with caplog.at_level(logging.WARNING):
        assert bound(4) == (8, None)
    assert bound(5) == (10, None)
    assert fakes.num_calls == 2
    assert bound.provider == "c.sound"
    (choice,) = ops.choices()
    assert choice.provider == "c.sound"
    reason = "does not compile on this device: no such instruction"
    assert choice.rejected == (("a.broken", reason), ("b.broken", reason))
    assert f"kernel a.broken of fake.double@1 {reason}; b.broken serves instead" in caplog.text


def test_every_role_with_that_problem_changes_and_no_other(fakes):
    ops = table(BROKEN, SOUND)
    first, second = (ops.bind("fake.double", dtype="float32", role=role, n=3) for role in "ab")
    other = ops.bind("fake.double", dtype="float32", n=4)
    first(1)
    assert (second.provider, other.provider) == ("c.sound", "a.broken")
    assert second(1) == (2, None) and fakes.num_calls == 1


def test_a_plan_of_the_kernel_that_failed_is_not_handed_on():
    ops = table(kernel("a.broken", "broken", 30, plan="fakes:plan"), SOUND)
    bound = ops.bind("fake.double", dtype="float32")
    assert bound(4, plan=bound.plan_fn(bound.problem, None)) == (8, None)
    assert bound.plan_fn is None and not ops.planners()


@pytest.mark.parametrize("named", ["a.broken", ("a.broken", "b.broken")])
def test_one_that_was_named_stops_the_engine(named):
    bound = table(BROKEN, ALSO_BROKEN, SOUND, overrides={"fake.*": named}).bind(
        "fake.double", dtype="float32"
    )
    with pytest.raises(
        UnsupportedOpError, match=r"a\.broken: named, but does not compile"
    ) as caught:
        bound(4)
    assert isinstance(caught.value.__context__, CompileError)


def test_bits_of_references_are_called_unproven_where_they_are_asked_for(caplog):
    """Torch's own kernels on a device may round a row as the batch has it."""
    reference = kernel("torch.reference", "double", 0)
    for options, expected in (({}, 0), ({"batch_invariant": True}, 1)):
        caplog.clear()
        ops = table(BROKEN, reference, **options)
        bound = ops.bind("fake.double", dtype="float32")
        ops.freeze()
        assert "proven on the CPU only" not in caplog.text
        bound(4)
        assert caplog.text.count("fake.double on board: that their bits do not depend") == expected
    ops = table(reference, batch_invariant=True)
    ops.bind("fake.double", dtype="float32")
    caplog.clear()
    ops.freeze()
    assert "proven on the CPU only" in caplog.text


def test_several_may_be_named():
    ops = table(BROKEN, ALSO_BROKEN, SOUND, overrides={"*": ("a.broken", "c.sound")})
    assert ops.bind("fake.double", dtype="float32")(4) == (8, None)


def test_where_there_is_no_other_the_error_has_the_reason():
    bound = table(BROKEN).bind("fake.double", dtype="float32")
    with pytest.raises(UnsupportedOpError, match=r"a\.broken: does not compile on this device"):
        bound(4)


@pytest.mark.parametrize(
    "spec",
    [
        kernel("a.broken", "broken", 30, compile_failure=None),
        kernel("a.broken", "broken", 30, prepare="fakes:prepare"),
    ],
    ids=["says nothing", "weights are laid out for it"],
)
def test_some_cannot_give_way(spec):
    bound = table(spec, SOUND).bind("fake.double", dtype="float32")
    with pytest.raises(CompileError):
        bound(4)


def test_any_other_error_is_the_callers(fakes):
    fakes.error = ZeroDivisionError()
    bound = table(BROKEN, SOUND).bind("fake.double", dtype="float32")
    with pytest.raises(ZeroDivisionError):
        bound(4)
    assert bound.provider == "a.broken"


def test_the_next_start_knows(tmp_path, fakes):
    def start(**setup):
        ops = table(BROKEN, SOUND)
        ops.remember_failures(str(tmp_path), {"torch": "1", **setup})
        return ops, ops.bind("fake.double", dtype="float32")

    _, bound = start()
    assert bound(4) == (8, None)
    ops, bound = start()
    assert bound.provider == "c.sound" and fakes.num_calls == 1
    ((provider, reason),) = ops.choices()[0].rejected
    (file,) = tmp_path.iterdir()
    assert provider == "a.broken"
    assert reason.startswith("does not compile on this device: no such instruction (remembered in ")
    assert str(file) in reason
    assert start(torch="2")[1].provider == "a.broken"
    file.unlink()
    assert start()[1].provider == "a.broken"


def test_what_compilers_print_is_cut(fakes):
    """Some say where, print the program, and say why."""
    fakes.error = CompileError("at line 7: " + "x " * 5000 + "no such type")
    ops = table(BROKEN, SOUND)
    ops.bind("fake.double", dtype="float32")(4)
    reason = ops.choices()[0].rejected[0][1]
    assert len(reason) < 400
    assert "at line 7" in reason and reason.endswith("x x no such type")
