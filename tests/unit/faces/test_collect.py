"""Many prompts in, results out: order, errors, stops, Ctrl-C."""

import signal
import threading
import time

import numpy as np
import pytest
from deepinfer_core.errors import ConfigError, EngineError, PromptTooLongError, RequestError
from deepinfer_core.faces.collect import make_jobs, run_jobs
from deepinfer_core.faces.streams import TokenStream
from deepinfer_core.sampling_params import SamplingParams


@pytest.fixture
def generate(frontend, encoder):
    def generate(prompts, params=None, **options):
        return run_jobs(frontend, make_jobs(encoder.prompts(prompts), params), **options)

    return generate


def test_results_come_in_the_order_of_the_prompts(generate):
    outputs = generate(["abcdef", "xy", "q" * 30], SamplingParams(max_tokens=50))
    assert [o.text for o in outputs] == ["fedcba", "yx", "q" * 30]
    assert [o.prompt for o in outputs] == ["abcdef", "xy", "q" * 30]
    assert {o.outputs[0].finish_reason for o in outputs} == {"stop"}
    assert outputs[0].metrics.num_output_tokens == 7  # end-of-sequence is a token of the output
    assert outputs[0].metrics.ttft_s <= outputs[0].metrics.latency_s


def test_one_prompt_and_ids_and_mappings_are_prompts(generate, engine):
    ids = engine.tokenizer.encode("abc")
    for prompt in ("abc", ids, {"prompt": "abc"}, {"prompt_token_ids": ids}):
        (output,) = generate(prompt, {"max_tokens": 9})
        assert output.text == "cba"
        assert output.prompt_token_ids == ids
    assert generate([]) == []


def test_arrays_and_iterators_are_prompts(generate, engine):
    ids = engine.tokenizer.encode("abc")
    params = {"max_tokens": 9}
    assert [o.text for o in generate(np.array(ids), params)] == ["cba"]
    assert [o.text for o in generate(np.array([ids, ids]), params)] == ["cba", "cba"]
    assert [o.text for o in generate(list(np.array(ids)), params)] == ["cba"]
    assert [o.text for o in generate((text for text in ("ab", "cd")), params)] == ["ba", "dc"]
    (output,) = generate(b"abc", params)
    assert "not bytes" in str(output.error)


def test_a_bad_prompt_costs_only_itself(generate, engine):
    bad = ["", 5, {"prompt": "a", "x": 1}, {"prompt": 7}, [99999], "a\ud800", "z" * 5000, [1.5]]
    outputs = generate(["ok", *bad, "xyz"], {"max_tokens": 9})
    assert [o.text for o in outputs if o.error is None] == ["ko", "zyx"]
    assert all(isinstance(o.error, RequestError) for o in outputs[1:-1])
    assert isinstance(outputs[7].error, PromptTooLongError)
    assert "5000" in str(outputs[7].error)
    assert "surrogate" in str(outputs[6].error)


def test_a_bad_parameter_costs_only_its_prompt(generate):
    outputs = generate(["ab", "cd", "ef"], [{"temperature": -1}, {"max_tokens": 9}, {"nope": 1}])
    assert outputs[1].text == "dc"
    assert "temperature" in str(outputs[0].error)
    assert "nope" in str(outputs[2].error)


def test_as_many_parameters_as_prompts(generate):
    with pytest.raises(ConfigError, match="2 prompts but 1"):
        generate(["a", "b"], [SamplingParams()])
    for params in ("greedy", 5):
        with pytest.raises(ConfigError, match=f"sampling_params = {params!r}; allowed"):
            generate(["a", "b"], params)


def test_errors_can_be_raised_and_then_nothing_goes_on(generate, engine):
    with pytest.raises(RequestError, match="empty"):
        generate(["abc" * 100, "", "x"], {"max_tokens": 200}, raise_errors=True)
    engine.advance()
    engine.advance()
    assert not engine.has_unfinished


def test_a_stop_string_cuts_ids_text_and_logprobs_at_one_point(generate, engine, say):
    ids = say("one two END three")
    (output,) = generate("p", {"max_tokens": 99, "stop": ["END"], "logprobs": 0})
    (sample,) = output.outputs
    kept = len(engine.tokenizer.encode("one two END"))
    assert sample.text == "one two "
    assert (sample.finish_reason, sample.stop_reason) == ("stop", "END")
    assert sample.token_ids == ids[:kept]
    assert len(sample.logprobs) == kept
    assert sample.cumulative_logprob == -0.25 * kept
    assert not engine._live  # and the engine does not go on


def test_the_stop_string_may_stay(generate, say):
    say("one END two")
    params = {"max_tokens": 99, "stop": "END", "include_stop_str_in_output": True}
    assert generate("p", params)[0].text == "one END"


def test_a_stop_string_in_the_last_allowed_token_is_a_stop(generate, engine, say):
    say("one END two")
    num_tokens = len(engine.tokenizer.encode("one END"))
    (output,) = generate("p", {"max_tokens": num_tokens, "stop": "END"})
    assert output.outputs[0].finish_reason == "stop"
    (output,) = generate("p", {"max_tokens": num_tokens - 1, "stop": "END"})
    assert output.outputs[0].finish_reason == "length"
    assert output.text == "one EN"


def test_the_text_of_a_stop_token_is_left_out(generate, engine, say):
    say("one.two")
    dot = engine.tokenizer.encode(".")[0]
    (output,) = generate("p", {"max_tokens": 99, "stop_token_ids": [dot]})
    assert output.text == "one"
    assert output.outputs[0].stop_reason == dot
    assert output.outputs[0].token_ids[-1] == dot


def test_samples_come_by_index_even_when_a_later_one_ends_first(generate, engine):
    texts = ["a long answer", "b", "c c"]
    engine._reply = lambda prompt, index: engine.tokenizer.encode(texts[index])
    (output,) = generate("p", {"max_tokens": 99, "n": 3, "seed": 11})
    assert [(s.index, s.text, s.seed) for s in output.outputs] == [
        (0, "a long answer", 11),
        (1, "b", 11),
        (2, "c c", 11),
    ]


def test_half_a_character_is_not_lost_and_not_shown_before_it_is_whole(generate, engine, say):
    ids = say("é€")
    assert generate("p", {"max_tokens": 9})[0].text == "é€"
    assert len(ids) == 5
    assert generate("p", {"max_tokens": 1})[0].text == "\ufffd"


@pytest.fixture
def ctrl_c():
    """Ctrl-C works as at a terminal, also where the tests run in the background."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_what_is_finished_and_aborts_the_rest(generate, engine):
    answers = {1: "short", 2: "long " * 200}
    engine._reply = lambda prompt, index: engine.tokenizer.encode(answers[len(prompt)])
    advance, steps = engine.advance, []

    def advance_and_interrupt():
        steps.append(1)
        if len(steps) == 20:
            signal.raise_signal(signal.SIGINT)
        return advance()

    engine.advance = advance_and_interrupt
    short, long, other = generate(["a", "bb", "cc"], {"max_tokens": None})
    assert short.text == "short"
    assert short.outputs[0].finish_reason == "stop"
    assert long.outputs[0].finish_reason == other.outputs[0].finish_reason == "abort"
    assert long.text.startswith("long ")
    assert len(steps) == 20
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_engine_that_stops_is_an_error_for_all(generate, engine, frontend):
    engine.fail_next_step = ValueError("boom")
    with pytest.raises(EngineError, match="boom"):
        generate(["a", "b"])
    with pytest.raises(EngineError, match="has stopped"):
        generate("a")


def test_nothing_is_turned_into_text_before_the_end_unless_it_must_be(
    generate, engine, monkeypatch
):
    from deepinfer_core.text.stops import OutputText

    calls = []
    feed = OutputText.feed
    monkeypatch.setattr(
        OutputText, "feed", lambda self, ids, **kw: calls.append(len(ids)) or feed(self, ids, **kw)
    )
    generate("x" * 20, {"max_tokens": 10})
    assert calls == [10]
    calls.clear()
    generate("x" * 20, {"max_tokens": 10, "stop": "y"})
    assert len(calls) >= 4
    assert sum(calls) == 10


def test_two_threads_share_the_engine_without_an_engine_thread(generate):
    results = {}

    def work(name):
        results[name] = [o.text for o in generate([name * 40, name], {"max_tokens": 60})]

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == {name: [name * 40, name] for name in "abcdef"}


def test_prompts_start_together_on_an_engine_thread(generate, engine, frontend, encoder):
    """Each used to wait for the step that was running, and so to start a step after the last."""
    advance, nums_live = engine.advance, []

    def slow_advance():
        time.sleep(0.01)
        nums_live.append(len(engine._live))
        return advance()

    engine.advance = slow_advance
    frontend.loop.start_thread()
    with TokenStream(frontend, encoder.prompt("b" * 3000), SamplingParams(max_tokens=None)) as busy:
        next(busy)
        generate(["a" * 40] * 6, SamplingParams(max_tokens=40))
    assert len(set(nums_live)) <= 4  # 1, 7, and what a busy machine lets slip between
