"""Every op of a step is seen, and runs again alone."""

import pytest
import torch
from deepinfer_core.bench import ceilings as ceilings_module
from deepinfer_core.bench import op_times
from deepinfer_core.bench.ceilings import Ceilings, measure_ceilings
from deepinfer_core.bench.op_costs import OpCost
from deepinfer_core.bench.op_times import OpRecorder, time_ops
from deepinfer_core.bench.steps import decoding, recording
from deepinfer_core.ops.bound import BoundOp
from deepinfer_core.plugin_api import DeviceInfo
from deepinfer_core.runtime.device import CpuRuntime

CEILINGS = Ceilings(bytes_per_s=1e9, flop_per_s={"float32": 1e9, "bfloat16": 4e9})


class RecordingRuntime(CpuRuntime):
    """The CPU, with graphs that run what was recorded again."""

    supports_graphs = True

    def __init__(self):
        super().__init__(DeviceInfo(kind="cpu"))
        self.num_captures = 0

    def capture(self, function):
        self.num_captures += 1
        function.replay = function
        return function


@pytest.fixture
def calls(llm):
    with (
        decoding(llm.engine, 2, context=9, num_steps=3),
        recording(llm.engine, keeps_arguments=True) as recorder,
    ):
        llm.engine.advance()
    return recorder.calls


def test_a_step_calls_each_op_of_each_layer(calls):
    names = [call.bound.problem.op for call in calls]
    assert names.count("attn.paged") == 3
    assert names.count("gemm.dense") == 3 * 4 + 1
    assert names.count("sample.draw") == 1


def test_calls_run_again_as_they_ran(llm):
    seen = []
    with (
        decoding(llm.engine, 1, context=9, num_steps=3),
        recording(llm.engine, keeps_arguments=True) as recorder,
    ):
        llm.engine.advance()
        call = next(c for c in recorder.calls if c.bound.problem.op == "gemm.dense")
        fn, args = call.bound.fn, call.arguments[0]
        call.bound.fn = lambda *given, **kwargs: seen.append(given)
        call.run()
        call.bound.fn = fn
    assert len(seen) == 1
    assert all(a is b for a, b in zip(seen[0], args, strict=True))


def test_kinds_are_timed_with_all_their_calls(calls, monkeypatch):
    monkeypatch.setattr(op_times, "SHORT_S", 1e-4)
    times = time_ops(calls, CpuRuntime(DeviceInfo(kind="cpu")), CEILINGS, set())
    assert sum(each.calls for each in times) == len(calls)
    assert sum(each.num_bytes for each in times) == sum(call.cost.num_bytes for call in calls)
    assert [each.ms for each in times] == sorted((each.ms for each in times), reverse=True)
    (attention,) = [each for each in times if each.op == "attn.paged"]
    assert (attention.role, attention.calls, attention.is_bound_by) == ("attn.core", 3, "bytes")
    assert attention.of_roofline == pytest.approx(attention.floor_ms / attention.ms)
    assert attention.floor_ms == pytest.approx(attention.num_bytes / 1e6)


def test_what_can_be_recorded_is(calls, monkeypatch):
    monkeypatch.setattr(op_times, "SHORT_S", 1e-4)
    problems = {c.bound.problem for c in calls if c.bound.problem.op == "norm.rms"}
    runtime = RecordingRuntime()
    time_ops(calls, runtime, CEILINGS, problems)
    assert runtime.num_captures == len({problem.role for problem in problems}) == 3


def test_large_arguments_are_kept_of_the_first_call_of_a_kind(llm, monkeypatch):
    monkeypatch.setattr(op_times, "KEPT_BYTES", 0)
    monkeypatch.setattr(op_times, "SHORT_S", 1e-4)
    with (
        decoding(llm.engine, 1, context=9, num_steps=3),
        recording(llm.engine, keeps_arguments=True) as recorder,
    ):
        llm.engine.advance()
    kept = [c for c in recorder.calls if c.arguments is not None]
    kinds = {op_times.kind_of(call.bound) for call in recorder.calls}
    assert len(kept) == len(kinds) < len(recorder.calls)
    times = time_ops(recorder.calls, CpuRuntime(DeviceInfo(kind="cpu")), CEILINGS, set())
    assert sum(each.calls for each in times) == len(recorder.calls)


def test_nothing_is_left_behind(llm):
    plain = BoundOp.__call__
    with pytest.raises(ZeroDivisionError), OpRecorder(llm.engine.runner.model):
        assert BoundOp.__call__ is not plain
        raise ZeroDivisionError
    assert BoundOp.__call__ is plain


def test_a_floor_is_the_longer_of_bytes_and_products():
    assert CEILINGS.floor_s(OpCost(3000, 2000, "float32")) == pytest.approx(3e-6)
    assert CEILINGS.floor_s(OpCost(3000, 8000, "bfloat16")) == pytest.approx(3e-6)
    assert CEILINGS.floor_s(OpCost(3000, 8000, "float32")) == pytest.approx(8e-6)
    assert CEILINGS.product_s(OpCost(0, 8000, "float8_e4m3fn")) == pytest.approx(2e-6)


def test_ceilings_are_measured(monkeypatch):
    monkeypatch.setattr(ceilings_module, "LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(ceilings_module, "LARGEST_SIDE", 512)
    found = measure_ceilings(torch.device("cpu"), {"float32", "bfloat16"})
    assert 1e7 < found.bytes_per_s < 1e13
    assert set(found.flop_per_s) == {"float32", "bfloat16"}
    assert all(1e7 < speed < 1e15 for speed in found.flop_per_s.values())
