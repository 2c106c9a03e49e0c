"""Recorded steps give what steps run op by op give, and write nothing besides."""

from dataclasses import replace
from itertools import count

import pytest
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.engine_setup import load_model
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugin_api import Caps, DeviceInfo, KernelSpec
from deepinfer_core.plugins import PluginHost
from deepinfer_core.runtime import graph_setup, graphs
from deepinfer_core.runtime.device import CpuRuntime
from deepinfer_core.runtime.graphs import MAX_SIZE, graph_sizes, ops_that_need_the_host
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny import write_tiny_checkpoint

FAMILIES = ["llama", "deepseek_v41"]
OPTIONS = {"dtype": "float32", "batch_invariant": True}
MAX_NUM_SEQS = 8
PROMPTS = [[7, 3, 9, 11, 5], [4] * 16, list(range(3, 43)), [8, 8, 2, 30], [5]]


class Recording:
    """A graph that runs what it recorded again."""

    def __init__(self, runtime, function):
        self._runtime, self._function = runtime, function

    def replay(self):
        self._runtime.num_replays += 1
        self._function()


class RecordingRuntime(CpuRuntime):
    """The CPU, with graphs. `supports_graphs` is the engine's question."""

    supports_graphs = True

    def __init__(self):
        super().__init__(DeviceInfo(kind="cpu"))
        self.num_captures = self.num_replays = 0

    def capture(self, function):
        self.num_captures += 1
        function()
        return Recording(self, function)


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request, tmp_path_factory):
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model", request.param)
    config = EngineConfig.from_flat(str(folder), **OPTIONS)
    return folder, load_model(config, PluginHost(load_entry_points=False))


@pytest.fixture
def make_engine(loaded, monkeypatch, tmp_path):
    """make_engine(runtime | None): with graphs on that runtime, as if every op allowed them.

    Each remembers nothing of the others, unless they share a `cache_dir`.
    """
    folder, model = loaded
    monkeypatch.setattr(graph_setup, "ops_that_need_the_host", lambda choices: [])
    numbers = count()

    def make(runtime=None, **fields):
        cache_dir = str(tmp_path / str(next(numbers)))
        fields = {"num_blocks": 200, "max_num_seqs": MAX_NUM_SEQS, "cache_dir": cache_dir,
                  **OPTIONS, **fields}  # fmt: skip
        config = EngineConfig.from_flat(str(folder), **fields)
        return Engine.from_loaded(config, replace(model, runtime=runtime or model.runtime))

    return make


def ask(engine, prompts, **fields):
    params = SamplingParams(temperature=0, ignore_eos=True, **{"max_tokens": 6, **fields})
    return [engine.add(prompt, params)[0] for prompt in prompts]


def tokens(engine, prompts, **fields):
    requests = ask(engine, prompts, **fields)
    while engine.has_unfinished:
        engine.advance()
    engine.check_integrity()
    return [request.output_token_ids for request in requests]


@pytest.mark.parametrize(
    ("num_requests", "overlap"),
    [(1, False), (2, True), (3, True), (5, False)],
    ids=["one", "a size", "between sizes", "filled to the most"],
)
def test_tokens_are_those_without_graphs(make_engine, num_requests, overlap):
    runtime, prompts = RecordingRuntime(), PROMPTS[:num_requests]
    plain = tokens(make_engine(overlap=overlap), prompts)
    assert tokens(make_engine(runtime, overlap=overlap), prompts) == plain
    assert runtime.num_captures == 1
    assert runtime.num_replays >= 5


def test_requests_that_end_one_after_another_are_launched_by_ever_smaller_sizes(make_engine):
    def run(engine):
        requests = [
            request
            for index, prompt in enumerate(PROMPTS)
            for request in ask(engine, [prompt], max_tokens=4 + 2 * index)
        ]
        while engine.has_unfinished:
            engine.advance()
        return [request.output_token_ids for request in requests]

    runtime = RecordingRuntime()
    assert run(make_engine(runtime)) == run(make_engine())
    assert runtime.num_captures == 4  # 8, 4, 2, 1


def test_a_rehearsed_step_gives_the_same_tokens_and_launches_no_graph(make_engine):
    runtime = RecordingRuntime()
    engine = make_engine(runtime)
    engine.runner.graphs.logits = engine.runner.graphs.rehearse
    assert tokens(engine, PROMPTS[:3]) == tokens(make_engine(), PROMPTS[:3])
    assert (runtime.num_captures, runtime.num_replays) == (0, 0)


def test_a_start_records_what_earlier_ones_did(make_engine, tmp_path):
    """Before the first request, the largest first, and with the same tokens."""
    plain, first, second = (
        tokens(make_engine(), PROMPTS[:5]),
        RecordingRuntime(),
        RecordingRuntime(),
    )
    for runtime in (first, second):
        engine = make_engine(runtime, cache_dir=str(tmp_path))
        assert runtime.num_captures == (0 if runtime is first else 2)
        assert tokens(engine, PROMPTS[:1]) == plain[:1]
        assert tokens(engine, PROMPTS[:5]) == plain
        assert runtime.num_captures == 2
    assert list(engine.runner.graphs._recorded) == [8, 1]


def test_recording_ahead_writes_nothing_into_the_cache(make_engine, tmp_path):
    tokens(make_engine(RecordingRuntime(), cache_dir=str(tmp_path)), PROMPTS[:5])
    runtime = RecordingRuntime()
    engine, fresh = make_engine(runtime, cache_dir=str(tmp_path)), make_engine(RecordingRuntime())
    assert runtime.num_captures == 1
    assert torch.equal(engine.runner._pool, fresh.runner._pool)


def test_recording_ahead_ends_when_its_time_is_up(make_engine, tmp_path, monkeypatch):
    tokens(make_engine(RecordingRuntime(), cache_dir=str(tmp_path)), PROMPTS[:1])
    monkeypatch.setattr(graphs, "MAX_AHEAD_S", 0.0)
    runtime = RecordingRuntime()
    engine = make_engine(runtime, cache_dir=str(tmp_path))
    assert runtime.num_captures == 0
    tokens(engine, PROMPTS[:1])
    assert runtime.num_captures == 1


def test_other_limits_are_another_setup(make_engine, tmp_path):
    tokens(make_engine(RecordingRuntime(), cache_dir=str(tmp_path)), PROMPTS[:1])
    runtime = RecordingRuntime()
    make_engine(runtime, cache_dir=str(tmp_path), max_num_seqs=4)
    assert runtime.num_captures == 0


def test_fillers_write_nothing(make_engine):
    """Both pools are equal byte by byte after every step, slots of no request included."""
    runtime = RecordingRuntime()
    engines = [make_engine(each, overlap=False) for each in (None, runtime)]
    for engine in engines:
        ask(engine, PROMPTS[:5])
    pools = [engine.runner._pool for engine in engines]
    while engines[0].has_unfinished:
        for engine in engines:
            engine.step()
        assert torch.equal(*pools)
    assert not engines[1].has_unfinished
    assert runtime.num_replays == 5


def test_prompts_take_the_ordinary_path(make_engine):
    runtime = RecordingRuntime()
    tokens(make_engine(runtime), PROMPTS[:4], max_tokens=1)
    assert runtime.num_captures == 0
    tokens(make_engine(runtime), PROMPTS[:4], max_tokens=2)
    assert runtime.num_replays == 1


def test_logprobs_of_prompts_take_the_ordinary_path(make_engine):
    """Also where a prompt comes token by token, as its last step draws like a decode."""
    fields = {"max_num_seqs": 1, "max_num_batched_tokens": 1, "prefix_caching": False}
    runtime, found = RecordingRuntime(), []
    for engine in (make_engine(**fields), make_engine(runtime, **fields)):
        (request,) = ask(engine, PROMPTS[:1], prompt_logprobs=1, max_tokens=3)
        while engine.has_unfinished:
            engine.advance()
        found.append((request.prompt_logprobs, request.output_token_ids))
    assert len(found[0][0]) == len(PROMPTS[0]) - 1
    assert found[1] == found[0]
    assert runtime.num_replays == 3


def choices(*kernels, ops=("norm.rms", "attn.paged")):
    """Of ops bound against these kernels and core's."""
    host, device = PluginHost(load_entry_points=False), DeviceInfo(kind="cpu")
    table = make_op_table([*kernels, *host.kernels(device)], device=device)
    for op in ops:
        table.bind(op, dtype="float32")
    return table.choices()


def test_ops_that_cannot_be_recorded_are_named_with_who_serves_them():
    assert ops_that_need_the_host(choices(ops=("norm.rms",))) == []
    unsafe = ops_that_need_the_host(choices())
    assert unsafe == ["attn.paged (torch.reference)"]
    target = "deepinfer_core.ops.reference.attn:paged"
    caps = Caps(device_kinds=("*",), dtypes=("float32",), features=frozenset({"graph_safe"}))
    safe = KernelSpec("attn.paged@1", "a.paged", target, caps, priority=20)
    assert ops_that_need_the_host(choices(safe)) == []


def test_what_only_chunks_call_need_not_be_recorded():
    assert ops_that_need_the_host(choices(ops=("attn.mla_prefill",))) == []


def test_one_such_op_switches_graphs_off(loaded, caplog):
    """References that read sizes of the step on the host are such ops."""
    folder, model = loaded
    runtime = RecordingRuntime()
    config = EngineConfig.from_flat(str(folder), num_blocks=200, max_num_seqs=2, **OPTIONS)
    with caplog.at_level("INFO", logger="deepinfer_core"):
        engine = Engine.from_loaded(config, replace(model, runtime=runtime))
    tokens(engine, PROMPTS[:1])
    assert runtime.num_captures == 0
    assert "op by op" in caplog.text and "cannot be recorded" in caplog.text


def test_an_op_that_turns_out_to_need_the_host_switches_graphs_off(
    make_engine, monkeypatch, caplog
):
    """As one does whose kernel did not compile, when a reference serves instead."""
    runtime, expected = RecordingRuntime(), tokens(make_engine(None), PROMPTS)
    engine = make_engine(runtime)
    monkeypatch.setattr(
        graph_setup, "ops_that_need_the_host", lambda choices: ["attn.paged (slow)"]
    )
    assert tokens(engine, PROMPTS) == expected
    assert (runtime.num_captures, runtime.num_replays) == (1, 0)
    assert "op by op: attn.paged (slow) cannot be recorded" in caplog.text


def test_when_the_time_for_recording_is_up_larger_sizes_serve(make_engine, monkeypatch):
    """The first run of a step, in which kernels are compiled, is none of that time."""
    clock = [0.0]
    monkeypatch.setattr(graphs.time, "perf_counter", lambda: clock[0])

    class SlowRuntime(RecordingRuntime):
        def capture(self, function):
            clock[0] += 60.0
            graph = super().capture(function)
            clock[0] += 4.0
            return graph

    runtime, expected = SlowRuntime(), tokens(make_engine(None), PROMPTS)
    engine = make_engine(runtime)
    for size in (3, 5, 1):  # records 4, 8 and 1, and 10 seconds are over
        assert tokens(engine, PROMPTS[:size]) == expected[:size]
    assert sorted(engine.runner.graphs._recorded) == [1, 4, 8]
    num_replays = runtime.num_replays
    assert tokens(engine, PROMPTS[:2]) == expected[:2]
    assert runtime.num_captures == 3
    assert runtime.num_replays == num_replays + 5


def test_a_size_that_does_not_fit_runs_op_by_op(make_engine):
    """Memory that runs out while a step is recorded costs that step, not every one after it."""

    class SmallRuntime(RecordingRuntime):
        def capture(self, function):
            self.num_captures += 1
            raise torch.OutOfMemoryError("no room for another graph")

    runtime = SmallRuntime()
    assert tokens(make_engine(runtime), PROMPTS[:1]) == tokens(make_engine(None), PROMPTS[:1])
    assert runtime.num_captures == 1


def test_sizes_are_dense_where_steps_are_quick_and_end_at_the_most():
    assert graph_sizes(1) == [1]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(8) == [1, 2, 4, 8]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert graph_sizes(100)[-4:] == [64, 80, 96, 100]
    assert graph_sizes(10_000)[-1] == MAX_SIZE
    assert all(sizes == sorted(set(sizes)) for sizes in map(graph_sizes, range(1, 300)))
