"""The faces on a real engine with a tiny model: one engine, one answer, whichever way one asks."""

import asyncio
import gc
import json
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from deepinfer_core import LLM, EngineConfig, SamplingParams
from deepinfer_core.errors import ConfigError, EngineError, PluginError, RequestError
from deepinfer_core.plugin_api import AnswerText, PluginInfo, RecipeSpec, hookimpl
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.tiny import write_tiny_checkpoint

SETTINGS = {
    "dtype": "float32",
    "max_num_seqs": 4,
    "max_model_len": 256,
    "num_blocks": 100,
    "batch_invariant": True,
}
PARAMS = SamplingParams(max_tokens=20, temperature=0.8, seed=3, logprobs=2, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "Hi!"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, host=PluginHost(load_entry_points=False), **SETTINGS) as llm:
        yield llm
        llm.engine.check_integrity()


def test_every_face_gives_the_same_answer(llm):
    (whole,) = llm.generate("Hello", PARAMS)
    sample = whole.outputs[0]
    assert len(sample.token_ids) == 20
    with llm.stream("Hello", PARAMS) as deltas:
        parts = list(deltas)
    assert [i for d in parts for i in d.token_ids] == sample.token_ids
    assert "".join(d.text for d in parts) == sample.text
    assert [e for d in parts for e in d.logprobs] == sample.logprobs
    assert deltas.output.outputs[0] == sample

    async def ask():
        return "".join([d.text async for d in llm.agenerate("Hello", PARAMS)])

    assert asyncio.run(ask()) == sample.text
    # The engine thread runs by now; generate goes through it.
    assert llm.generate("Hello", PARAMS)[0].outputs[0] == sample


def test_a_random_seed_is_returned_and_can_be_used_again(llm):
    params = {"max_tokens": 20, "ignore_eos": True}
    first, second = llm.generate(["Hello", "Hello"], params)
    assert first.outputs[0].seed != second.outputs[0].seed
    again = llm.generate("Hello", {**params, "seed": first.outputs[0].seed})[0]
    assert again.outputs[0].token_ids == first.outputs[0].token_ids != second.outputs[0].token_ids


def test_samples_of_one_prompt(llm):
    (output,) = llm.generate("Hello", SamplingParams(n=6, max_tokens=10, seed=1, ignore_eos=True))
    assert [s.index for s in output.outputs] == list(range(6))
    assert {s.seed for s in output.outputs} == {1}
    assert len({tuple(s.token_ids) for s in output.outputs}) > 3


def test_log_probabilities_are_those_of_score(llm):
    """What greedy decoding gives is greedy, and as likely as it said."""
    (output,) = llm.generate("Hello you", SamplingParams(temperature=0, max_tokens=8, logprobs=0))
    sample = output.outputs[0]
    (score,) = llm.score(output.prompt_token_ids, sample.token_ids)
    assert score.is_greedy
    assert score.token_ids == sample.token_ids
    assert score.total_logprob == pytest.approx(sample.cumulative_logprob, abs=1e-4)
    assert score.total_logprob == pytest.approx(sum(score.logprobs))
    other = [(i + 1) % 200 for i in sample.token_ids]
    (worse,) = llm.score(output.prompt_token_ids, other)
    assert not worse.is_greedy
    assert worse.total_logprob < score.total_logprob


def test_score_draws_the_border_where_the_whole_does(llm):
    encode = llm.tokenizer.encode
    scores = llm.score(["one ", "", "th", "a"], ["two", "abc", "e end", ""])
    assert scores[0].num_context_tokens == len(encode("one"))
    assert scores[0].token_ids == encode("one two")[len(encode("one")) :]
    assert scores[1].num_context_tokens == 1
    assert scores[1].token_ids == encode("abc")
    # "the" is one token where "th" is one, too: the continuation has what is left of the whole.
    assert scores[2].token_ids == encode("the end")[len(encode("th")) :]
    assert "empty" in str(scores[3].error)
    assert "both" in str(llm.score(["a"], [[5]])[0].error)
    with pytest.raises(ConfigError, match="2 contexts but 1"):
        llm.score(["a", "b"], ["c"])
    with pytest.raises(RequestError, match="empty"):
        llm.score("a", "", on_error="raise")


def test_chat_renders_the_template(llm):
    (output,) = llm.chat(MESSAGES, SamplingParams(max_tokens=3))
    assert output.prompt == "<|im_start|>user\nHi!<|im_end|><|im_start|>assistant\n"
    tool = {"type": "function", "function": {"name": "f"}}
    (output,) = llm.chat(MESSAGES, {"max_tokens": 3}, tools=[tool])
    assert json.dumps(tool)[1:20] in output.prompt
    unfinished = [*MESSAGES, {"role": "assistant", "content": "Well"}]
    (output,) = llm.chat(unfinished, {"max_tokens": 3}, continue_final_message=True)
    assert output.prompt.endswith("assistant\nWell")


def test_a_bad_conversation_costs_only_itself(llm):
    bad = [[], [{"content": "x"}], "text", [{"role": "user", "content": [{"type": "image"}]}]]
    outputs = llm.chat([MESSAGES, *bad, MESSAGES], {"max_tokens": 3})
    assert [o.error is None for o in outputs] == [True, False, False, False, False, True]
    with pytest.raises(RequestError):
        llm.chat([*bad, MESSAGES], on_error="raise")
    with pytest.raises(RequestError):
        llm.stream([{"content": "x"}])
    with pytest.raises(RequestError, match="tools needs messages"):
        llm.stream("text", tools=[])


def test_bad_requests_name_the_numbers(llm):
    outputs = llm.generate(
        ["ok", "", "x" * 300, [5, 9999], "ok", "ok"],
        [{}, {}, {}, {}, {"stop_token_ids": [9999]}, {"max_tokens": 2, "min_tokens": 3}],
    )
    messages = [str(o.error) for o in outputs]
    assert outputs[0].error is None
    assert "empty" in messages[1]
    assert "300" in messages[2]
    assert "255" in messages[2]
    assert "9999" in messages[3]
    assert "9999" in messages[4]
    assert "min_tokens 3 exceeds max_tokens 2" in messages[5]
    with pytest.raises(ConfigError, match="on_error"):
        llm.generate("x", on_error="ignore")


def test_a_priority_that_cannot_be_compared_costs_only_its_call(llm):
    """It once reached the queue, where comparing it ended the engine."""
    with llm.stream("Hello", PARAMS) as running:
        next(running)
        outputs = llm.generate(["a", "b"], {"max_tokens": 3}, priority="high")
        assert all("whole number" in str(o.error) and not o.outputs for o in outputs)
        with pytest.raises(RequestError, match=r"priority = 1\.5"):
            llm.stream("a", priority=1.5)
        assert list(running)[-1].finish_reason == "length"


def test_stop_strings_end_the_request_in_the_engine_too(llm):
    (plain,) = llm.generate("Hello", PARAMS)
    text = plain.text
    stop = text[8:11]
    begun = llm.metrics().num_output_tokens
    (output,) = llm.generate("Hello", PARAMS.model_copy(update={"stop": (stop,)}))
    sample = output.outputs[0]
    assert sample.text == text[: text.index(stop)]
    assert sample.token_ids == plain.outputs[0].token_ids[: len(sample.token_ids)]
    assert len(sample.logprobs) == len(sample.token_ids) < 20
    assert llm.metrics().num_output_tokens - begun == len(sample.token_ids)


def test_metrics_count(llm):
    before = llm.metrics()
    prompt = "a long prompt that begins like itself " * 3
    llm.generate(prompt, {"max_tokens": 4, "ignore_eos": True})
    llm.generate(prompt, {"max_tokens": 4, "ignore_eos": True})
    deltas = llm.stream(prompt, {"max_tokens": 200, "ignore_eos": True})
    next(deltas)
    deltas.close()
    llm.generate("", {})
    after = llm.metrics()
    num_prompt_tokens = len(llm.tokenizer.encode(prompt))
    assert after.num_finished - before.num_finished == 2
    assert after.num_aborted - before.num_aborted == 1
    assert after.num_prompt_tokens - before.num_prompt_tokens == 3 * num_prompt_tokens
    assert after.num_output_tokens - before.num_output_tokens >= 9
    assert after.num_cached_tokens - before.num_cached_tokens >= num_prompt_tokens
    assert after.num_hit_tokens > before.num_hit_tokens
    assert after.num_steps > before.num_steps
    assert after.latency_sum_s > before.latency_sum_s
    assert after.num_running == after.num_waiting == 0
    assert after.num_blocks > 0


def test_streams_and_batches_from_many_threads(llm):
    expected = {str(n): llm.generate(f"text {n}", PARAMS)[0].text for n in range(6)}
    got = {}

    def stream(n):
        got[n] = "".join(d.text for d in llm.stream(f"text {n}", PARAMS))

    def generate(n):
        got[n] = llm.generate(f"text {n}", PARAMS)[0].text

    threads = [
        threading.Thread(target=stream if n % 2 else generate, args=(str(n),)) for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == expected


def test_what_an_llm_is_made_from(path):
    for arguments in ({}, {"model": path, "config": EngineConfig.from_flat(str(path))}):
        with pytest.raises(ConfigError, match="give either"):
            LLM(**arguments)
    with pytest.raises(ConfigError, match="max_num_seq"):
        LLM(path, max_num_seq=3)


def test_a_stream_outlives_the_llm_that_made_it(path):
    """`for delta in LLM(path).stream(...)` used to find its engine closed."""
    host, num_threads = PluginHost(load_entry_points=False), threading.active_count()
    deltas = LLM(path, host=host, **SETTINGS).stream("Hello", PARAMS)
    gc.collect()
    assert sum(len(delta.token_ids) for delta in deltas) == 20
    del deltas
    gc.collect()
    assert threading.active_count() == num_threads


def test_a_closed_llm_says_so_and_one_that_is_lost_closes(path):
    host = PluginHost(load_entry_points=False)
    llm = LLM(config=EngineConfig.from_flat(str(path), **SETTINGS), host=host)
    list(llm.stream("a", {"max_tokens": 2}))
    llm.close()
    llm.close()
    with pytest.raises(EngineError, match="closed"):
        llm.generate("a")
    num_threads = threading.active_count()
    llm = LLM(path, host=host, **SETTINGS)
    list(llm.stream("a", {"max_tokens": 2}))
    assert threading.active_count() == num_threads + 1
    del llm
    gc.collect()
    assert threading.active_count() == num_threads


@dataclass
class ReverseRecipe:
    """Encodes the last message, backwards."""

    architecture: str
    tokenizer_json: str
    seen: list = field(default_factory=list)

    def encode(self, chat):
        if chat.get("mood") == "bad":
            raise ValueError("no")
        assert json.loads(self.tokenizer_json)["model"]["type"] == "BPE"
        text = chat["messages"][-1]["content"]
        return SimpleNamespace(
            token_ids=[ord(c) % 100 + 5 for c in reversed(text)],
            images=["cat"] if chat.get("mood") == "image" else [],
            constraint=None,
            starts_in_reasoning=False,
            stop_token_ids=list(range(3, 240)),
        )

    def parser(self, encoded):
        return Counting()


class Counting:
    """Says of an answer how long it is."""

    num_tokens = 0

    def feed(self, token_ids):
        self.num_tokens += len(token_ids)
        return []

    def finish(self):
        return [AnswerText(f"{self.num_tokens} tokens")]


class WithRecipe:
    def __init__(self, *names):
        self.names = names

    @hookimpl
    def deepinfer_plugin_info(self):
        return PluginInfo("acme", "1", "Acme", api=">=1.0,<2")

    @hookimpl
    def deepinfer_recipes(self):
        target = f"{__name__}:ReverseRecipe"
        return [RecipeSpec(name, target, ("LlamaForCausalLM",)) for name in self.names]


def host_with(*names):
    host = PluginHost(load_entry_points=False)
    host.register(WithRecipe(*names), name="acme")
    return host


def test_a_recipe_serves_its_architecture_by_itself(path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules[ReverseRecipe.__module__])
    with LLM(path, host=host_with("reverse"), **SETTINGS) as llm:
        params = {"max_tokens": 9, "allowed_token_ids": list(range(3, 200))}
        (output,) = llm.chat(MESSAGES, params)
        assert output.prompt_token_ids == [ord(c) % 100 + 5 for c in "!iH"]
        # The recipe's stop tokens end the answer at once.
        assert output.outputs[0].finish_reason == "stop"
        assert len(output.outputs[0].token_ids) == 1
        # Which are no part of the answer.
        assert output.outputs[0].message == {"role": "assistant", "content": "0 tokens"}
        for mood, message in (("bad", "recipe refused: no"), ("image", "has no vision tower")):
            (output,) = llm.chat(MESSAGES, chat_template_kwargs={"mood": mood})
            assert message in str(output.error)
    with pytest.raises(PluginError, match="a and b both serve"):
        LLM(path, host=host_with("a", "b"), **SETTINGS)


def test_a_template_file_wins(path, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("Q: {{ messages[-1]['content'] }} A:")
    host = PluginHost(load_entry_points=False)
    with LLM(path, host=host, chat_template=str(template), **SETTINGS) as llm:
        assert llm.chat(MESSAGES, {"max_tokens": 2})[0].prompt == "Q: Hi! A:"
    with pytest.raises(ConfigError, match="chat_template"):
        LLM(path, host=host, chat_template=str(tmp_path / "no"), **SETTINGS)


def test_a_model_without_a_template_takes_no_conversations(tmp_path):
    path = write_tiny_checkpoint(tmp_path / "bare", "llama")
    config = path / "tokenizer_config.json"
    fields = json.loads(config.read_text())
    del fields["chat_template"]
    config.write_text(json.dumps(fields))
    with LLM(path, host=PluginHost(load_entry_points=False), **SETTINGS) as llm:
        assert "no chat template" in str(llm.chat(MESSAGES)[0].error)
