"""Bounded replay: what is cached stays as it is, nothing before the start is read, and it is told.

A replayed prefix is approximate, so nothing here compares it with one computed whole.
"""

import math

import pytest
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.engine_setup import load_model
from deepinfer_core.errors import ConfigError, RequestError
from deepinfer_core.llm import LLM
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny import write_tiny_checkpoint

TEXT = [(7 * i + i * i) % 250 + 3 for i in range(40)]
HIT = 32
"""The most whole pages of 16 tokens that leave one of 33 to 40 to compute."""
NUM_REPLAYED = 7
"""One less than the window."""


@pytest.fixture(scope="module")
def hybrid_dir(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "v41", "deepseek_v41")


@pytest.fixture(scope="module")
def make_hybrid(hybrid_dir):
    options = {"dtype": "float32", "batch_invariant": True}
    loaded = load_model(
        EngineConfig.from_flat(str(hybrid_dir), **options), PluginHost(load_entry_points=False)
    )

    def make(**fields):
        fields = {**options, "num_blocks": 150, "bounded_replay": True, **fields}
        return Engine.from_loaded(EngineConfig.from_flat(str(hybrid_dir), **fields), loaded)

    return make


def start(engine, prompt, **changes):
    fields = {"max_tokens": 4, "ignore_eos": True, "temperature": 0, "logprobs": 2, **changes}
    return engine.add(prompt, SamplingParams(**fields))


def run(engine):
    while engine.has_unfinished:
        engine.advance()
    engine.check_integrity()


def ask(engine, prompt, **changes):
    (request,) = start(engine, prompt, **changes)
    run(engine)
    return request


def answer(request):
    return request.output_token_ids, request.logprobs


def is_finite(request):
    return all(math.isfinite(entry.logprob) for entry in request.logprobs)


def pages(engine):
    """The pool, and the numbers of pages that hits can take."""
    manager = engine._kv
    return engine.runner._pool, sorted(manager.pool.cached_blocks.values())


def poison(engine, byte):
    """Fill all that no hit takes; the null block stays finite, as it always is."""
    pool, cached = pages(engine)
    others = torch.ones(len(pool), dtype=torch.bool)
    others[[0, *cached]] = False
    pool[others] = byte


def test_without_the_option_a_hit_is_exact(make_hybrid):
    engine = make_hybrid(bounded_replay=False)
    cold, warm = ask(engine, TEXT), ask(engine, TEXT)
    assert warm.num_cached_tokens == HIT and warm.num_replay_tokens == 0
    assert answer(warm) == answer(cold)


def test_a_cold_prompt_is_computed_as_ever(make_hybrid):
    assert answer(ask(make_hybrid(), TEXT)) == answer(ask(make_hybrid(bounded_replay=False), TEXT))


def test_windows_leave_the_prefix_cache_and_replays_are_told(make_hybrid):
    engine = make_hybrid()
    cold = ask(engine, TEXT)
    assert cold.num_cached_tokens == cold.num_replay_tokens == 0
    assert engine.metrics()["num_cached_blocks"] == (40 + 3) // 16
    warm = ask(engine, TEXT)
    assert warm.num_cached_tokens == HIT and warm.num_replay_tokens == NUM_REPLAYED
    assert engine.metrics()["num_hit_tokens"] == HIT
    exact = make_hybrid(bounded_replay=False)
    ask(exact, TEXT)
    assert exact.metrics()["num_cached_blocks"] > 2 * (40 + 3) // 16


def test_what_is_cached_is_neither_written_nor_does_anything_before_the_start_matter(make_hybrid):
    answers = []
    for byte in (0, 0xFF):  # zeros, or numbers that are none
        engine = make_hybrid(max_num_batched_tokens=5)
        ask(engine, TEXT)
        poison(engine, byte)
        pool, cached = pages(engine)
        before = pool[cached].clone()
        warm = ask(engine, [*TEXT[:35], 9, 9, 9])
        assert warm.num_cached_tokens == HIT and warm.num_replay_tokens == NUM_REPLAYED
        assert torch.equal(pool[cached], before)
        assert len(pages(engine)[1]) == len(cached)
        assert is_finite(warm)
        answers.append(answer(warm))
    assert answers[0] == answers[1]


def test_forks_preemptions_and_aborts_in_the_middle_of_replays(make_hybrid):
    engine = make_hybrid(max_num_batched_tokens=3, max_num_seqs=6)
    ask(engine, TEXT)
    poison(engine, 0xFF)
    pool, cached = pages(engine)
    before = pool[cached].clone()
    samples = start(engine, TEXT, n=3, temperature=1.0, seed=3, max_tokens=8)
    other, doomed = start(engine, TEXT[:34])[0], start(engine, TEXT[:35])[0]
    engine.advance()
    assert 0 < samples[0].num_computed_tokens < HIT, "in the middle of the replay"
    engine.scheduler.preempt(samples[0])
    engine.advance()
    engine.abort(doomed)
    for _ in range(4):
        engine.advance()
    engine.scheduler.preempt(other)
    run(engine)
    assert torch.equal(pool[cached], before)
    assert [request.num_output_tokens for request in (*samples, other)] == [8, 8, 8, 4]
    assert all(map(is_finite, (*samples, other)))
    assert [request.num_cached_tokens for request in samples] == [HIT] * 3
    assert samples[0].num_replay_tokens == 2 * NUM_REPLAYED


def test_a_step_for_which_memory_ran_out_is_replayed_again(make_hybrid, monkeypatch):
    engine = make_hybrid()
    ask(engine, TEXT)
    undisturbed = ask(engine, TEXT)
    forward, calls = engine.runner.model.forward, []

    def fail_once(batch):
        calls.append(batch)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("no memory")
        return forward(batch)

    monkeypatch.setattr(engine.runner.model, "forward", fail_once)
    pool, cached = pages(engine)
    before = pool[cached].clone()
    request = ask(engine, TEXT)
    assert answer(request) == answer(undisturbed)
    assert torch.equal(pool[cached], before)


def test_log_probabilities_of_the_prompt_are_refused(make_hybrid):
    with pytest.raises(RequestError) as caught:
        start(make_hybrid(), TEXT, prompt_logprobs=1)
    assert caught.value.field == "prompt_logprobs"
    assert "cache.bounded_replay" in str(caught.value)


@pytest.mark.parametrize("family", ["llama", "deepseek_v4"])
def test_models_whose_windows_must_be_exact_refuse(tmp_path, family):
    path = str(write_tiny_checkpoint(tmp_path / "tiny", family))
    config = EngineConfig.from_flat(path, bounded_replay=True, num_blocks=200)
    with pytest.raises(ConfigError) as caught:
        Engine.from_config(config, PluginHost(load_entry_points=False))
    assert caught.value.field == "cache.bounded_replay"
    assert "False; True only for models that allow it" in str(caught.value)


def test_outputs_and_metrics_name_the_replayed_tokens(hybrid_dir):
    with LLM(str(hybrid_dir), bounded_replay=True, num_blocks=150, plugins=()) as llm:
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        outputs = [llm.generate([TEXT], params)[0] for _ in range(2)]
        assert [output.metrics.num_replay_tokens for output in outputs] == [0, NUM_REPLAYED]
        assert [output.metrics.num_cached_tokens for output in outputs] == [0, HIT]
        assert llm.metrics().num_replay_tokens == NUM_REPLAYED
