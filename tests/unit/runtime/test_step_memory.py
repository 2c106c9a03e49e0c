"""The pool leaves what the largest steps take, where a device can say how much that is."""

from dataclasses import replace

import pytest
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.engine_setup import load_model
from deepinfer_core.plugin_api import DeviceInfo, MeasuresMemory
from deepinfer_core.plugins import PluginHost
from deepinfer_core.runtime import step_memory
from deepinfer_core.runtime.device import CpuRuntime
from deepinfer_core.runtime.kv_cache import STEP_MARGIN
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny import write_tiny_checkpoint

FREE_BYTES = 4 << 20
OPTIONS = {
    "dtype": "float32",
    "batch_invariant": True,
    "memory_fraction": 0.9,
    "max_num_seqs": 5,
    "max_num_batched_tokens": 600,
}


class MeasuringRuntime(CpuRuntime):
    """The CPU, with little memory, of which every token of a step takes some."""

    def __init__(self, token_bytes):
        super().__init__(DeviceInfo(kind="cpu"))
        self.token_bytes = token_bytes
        self.taken = []
        self.num_tokens = 0

    def memory_info(self):
        return FREE_BYTES, FREE_BYTES

    def peak_bytes(self, function):
        function()
        self.taken.append(self.num_tokens * self.token_bytes)
        return self.taken[-1]


@pytest.fixture(scope="module", params=["llama", "deepseek_v41"])
def loaded(request, tmp_path_factory):
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model", request.param)
    config = EngineConfig.from_flat(str(folder), **OPTIONS)
    return folder, load_model(config, PluginHost(load_entry_points=False))


@pytest.fixture
def start(loaded, monkeypatch):
    """start(runtime): an engine, whose model tells the runtime how many tokens it was given."""
    folder, model = loaded

    def start(runtime, **fields):
        forward = model.model.forward

        def count(batch):
            runtime.num_tokens = len(batch.input_ids)
            return forward(batch)

        monkeypatch.setattr(model.model, "forward", count)
        config = EngineConfig.from_flat(str(folder), **OPTIONS, **fields)
        return Engine.from_loaded(config, replace(model, runtime=runtime))

    yield start
    monkeypatch.undo()


def tokens(engine):
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    requests = [engine.add(ids, params)[0] for ids in ([5, 6, 7], [9] * 30)]
    while engine.has_unfinished:
        engine.advance()
    engine.check_integrity()
    return [request.output_token_ids for request in requests]


def test_the_largest_steps_are_measured_and_keep_their_memory(start):
    runtime = MeasuringRuntime(4 << 10)
    assert isinstance(runtime, MeasuresMemory)
    engine = start(runtime)
    count = min(600, engine.limits.max_model_len)
    assert runtime.taken == [*[count // 8 << 12] * 2, count << 12, 5 << 12]
    pool = engine.runner._pool
    page_bytes = pool.shape[1]
    assert len(pool) == (FREE_BYTES - int((count << 12) * STEP_MARGIN)) // page_bytes
    plain = MeasuringRuntime(0)
    assert len(start(plain).runner._pool) == int(FREE_BYTES * 0.9) // page_bytes


def test_steps_that_are_measured_leave_no_trace(start):
    measured, configured = start(MeasuringRuntime(1)), start(MeasuringRuntime(1), num_blocks=100)
    assert not measured.runner._pool.any()
    assert tokens(measured) == tokens(configured)


def test_nothing_is_measured_where_the_number_of_blocks_is_given(start):
    runtime = MeasuringRuntime(1 << 20)
    start(runtime, num_blocks=100)
    assert runtime.taken == []


def test_a_long_chunk_that_would_take_long_is_reckoned_from_a_part(start, monkeypatch):
    runtime = MeasuringRuntime(4 << 10)
    monkeypatch.setattr(step_memory, "QUICK_S", 0)
    engine = start(runtime)
    count = min(600, engine.limits.max_model_len)
    assert runtime.taken == [*[count // 8 << 12] * 2, 5 << 12]
    pool = engine.runner._pool
    assert len(pool) == (FREE_BYTES - int((count << 12) * STEP_MARGIN)) // pool.shape[1]


def test_steps_that_do_not_fit_beside_the_weights_name_the_knob(start, caplog):
    class SmallRuntime(MeasuringRuntime):
        def peak_bytes(self, function):
            raise torch.OutOfMemoryError("tried to allocate 20.00 GiB")

    assert tokens(start(SmallRuntime(1))) == tokens(start(MeasuringRuntime(1)))
    assert "of 5 requests do not fit beside the weights: tried to allocate 20.00" in caplog.text
    assert "lower scheduler.max_num_batched_tokens" in caplog.text


def test_other_errors_stay_what_they_are(start):
    class BrokenRuntime(MeasuringRuntime):
        def peak_bytes(self, function):
            raise ValueError("shapes differ")

    with pytest.raises(ValueError, match="shapes differ"):
        start(BrokenRuntime(1))
