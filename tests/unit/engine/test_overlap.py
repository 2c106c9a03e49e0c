"""The host sees tokens after the one wait of a step, and nothing else waits."""

import sys
import threading
from dataclasses import replace
from pathlib import Path

import deepinfer_core
import pytest
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.plugin_api import DeviceInfo
from deepinfer_core.runtime.device import CpuRuntime
from deepinfer_core.sampling import result
from deepinfer_core.sampling_params import SamplingParams
from torch.overrides import TorchFunctionMode

POISON = -7
SOURCE = Path(deepinfer_core.__file__).parent


class LateEvent:
    """Host copies made before `record` hold poison until `wait`."""

    def __init__(self, pending):
        self._pending, self._covered = pending, []

    def record(self):
        self._covered, self._pending[:] = list(self._pending), []

    def query(self):
        return False

    def wait(self):
        with torch.inference_mode():
            for copy, values in self._covered:
                copy.copy_(values)


class LateRuntime(CpuRuntime):
    """A CPU that behaves like a device: copies arrive when their event is waited for."""

    def __init__(self):
        super().__init__(DeviceInfo(kind="cpu"))
        self.pending = []

    def create_event(self):
        return LateEvent(self.pending)

    def host_copy(self, tensor):
        copy = torch.full_like(tensor, 1 if tensor.dtype == torch.bool else POISON)
        self.pending.append((copy, tensor.clone()))
        return copy


@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_are_unreadable_until_the_step_has_settled(
    make_engine, model_dir, monkeypatch, overlap
):
    wanted = answers(make_engine(overlap=False))
    runtime = LateRuntime()
    monkeypatch.setattr(result, "host_copy", runtime.host_copy)
    config = EngineConfig.from_flat(
        str(model_dir), dtype="float32", batch_invariant=True, num_blocks=50, overlap=overlap
    )
    late = Engine.from_loaded(config, replace(make_engine.loaded, runtime=runtime))
    assert answers(late) == wanted


def test_whoever_drives_has_the_device_activated(make_engine, model_dir):
    """A current device belongs to a thread: that of the loader says nothing to the driver's."""
    threads = []

    class NotingRuntime(CpuRuntime):
        def activate(self):
            threads.append(threading.current_thread())

    config = EngineConfig.from_flat(str(model_dir), dtype="float32", num_blocks=50)
    runtime = NotingRuntime(DeviceInfo(kind="cpu"))
    engine = Engine.from_loaded(config, replace(make_engine.loaded, runtime=runtime))
    engine.add([5, 9, 3], SamplingParams(max_tokens=2))
    driver = threading.Thread(target=engine.advance)
    driver.start()
    driver.join(30)
    assert threads == [driver]


def answers(engine):
    styles = [{"temperature": 0, "logprobs": 2}, {"seed": 3, "prompt_logprobs": 1}]
    params = [SamplingParams(max_tokens=9, ignore_eos=True, **style) for style in styles]
    requests = [engine.add([5, 9, 3, 20, 8], p)[0] for p in params]
    while engine.has_unfinished:
        engine.advance()
    return [(r.output_token_ids, r.logprobs, r.prompt_logprobs) for r in requests]


class Waits(TorchFunctionMode):
    """Notes who, between a plan and its result, reads a tensor's value on the host."""

    READERS = (
        torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__bool__, torch.Tensor.__int__,
        torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.cpu,
        torch.Tensor.nonzero, torch.nonzero,
    )  # fmt: skip

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in self.READERS:
            frame = sys._getframe(1)
            while frame and SOURCE not in Path(frame.f_code.co_filename).parents:
                frame = frame.f_back
            if frame:
                where = Path(frame.f_code.co_filename).relative_to(SOURCE)
                self.found.add(f"{where}:{frame.f_lineno}")
        return func(*args, **(kwargs or {}))


def test_nothing_reads_a_value_between_plan_and_result(make_engine, monkeypatch):
    """A read on the host waits for the device, and the overlap is gone.

    Reference kernels may read on the CPU, where there is nothing to wait for.
    """
    engine = make_engine(overlap=True)
    waits = Waits()
    launch = engine._submit

    def guarded_launch(plan):
        with waits:
            flight = launch(plan)
        sample = flight.sample

        def guarded_sample(mask=None):
            with waits:
                sample(mask)

        flight.sample = guarded_sample
        return flight

    monkeypatch.setattr(engine, "_submit", guarded_launch)
    shapes = [
        {"temperature": 0},
        {"seed": 1, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "logprobs": 3},
        {"seed": 1, "repetition_penalty": 1.2, "min_tokens": 3, "bad_words": ("the",)},
        {"temperature": 0, "logit_bias": {3: 1.0}, "allowed_token_ids": tuple(range(40))},
        {"seed": 2, "prompt_logprobs": 2, "n": 2, "logprobs_mode": "processed", "logprobs": 1},
    ]
    for fields in shapes:
        engine.add([5, 9, 3, 20, 8], SamplingParams(max_tokens=6, ignore_eos=True, **fields))
    while engine.has_unfinished:
        engine.advance()
    ours = {where for where in waits.found if not where.startswith("ops/reference/")}
    assert not ours
