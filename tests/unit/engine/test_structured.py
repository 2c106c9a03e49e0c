"""Constrained answers are those of the plain run, whatever meets them, and belong to their form."""

import random
import re
import threading
from dataclasses import replace

import pytest
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.errors import GrammarError
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.structured.xgrammar_backend import XgrammarBackend

from .drafted import PROMPTS, run
from .test_drafts import FAULTS, Recites

THINK, END = 0, 1
"""Two special tokens of the tiny vocabulary, which stand around thinking here."""
THINKING = {"thinking_start": "<|endoftext|>", "thinking_end": "<|im_start|>"}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy", None]}, "b": {"type": "array", "maxItems": 3,
        "items": {"type": "integer", "minimum": 0, "maximum": 120}}},
    "required": ["a", "b"],
    "additionalProperties": False,
}  # fmt: skip
GRAMMAR = 'root ::= "(" root ")" root | "."'
STYLES = [
    {"structured": {"json_schema": SCHEMA, "max_whitespace": 1}, "temperature": 0},
    {"structured": {"json_schema": SCHEMA}, "seed": 3, "logprobs": 2, "presence_penalty": 0.5},
    {"structured": {"regex": "(ab|c[0-9]{1,3})+x"}, "seed": 4, "n": 3, "min_p": 0.001},
    {"structured": {"grammar": GRAMMAR}, "seed": 5, "top_p": 0.95, "frequency_penalty": 0.4},
    {"structured": {"choice": ["no", "never"]}, "seed": 6, "ignore_eos": True},
    {"structured": {"choice": ["no", "never"]}, "seed": 7, "thinking_budget": 4},
    {"structured": {"regex": "[a-c]{4}"}, "seed": 8, "logit_bias": {70: 3.0}, "top_k": 40},
    {"thinking_budget": 3, "seed": 9},
    {"seed": 10, "temperature": 0.7, "stop_token_ids": [30]},
]
MAX_TOKENS = 40


def add_all(engine):
    prompts = [PROMPTS[i % 4] if i != 5 and i != 7 else [*PROMPTS[1], THINK] for i in range(9)]
    return [
        request
        for prompt, style in zip(prompts, STYLES, strict=True)
        for request in engine.add(prompt, SamplingParams(max_tokens=MAX_TOKENS, **style))
    ]


@pytest.fixture(scope="module")
def make(make_engine):
    def make(proposer=None, **fields):
        return make_engine(proposer=proposer, **{**THINKING, "num_blocks": 300, **fields})

    return make


@pytest.fixture(scope="module")
def plain(make):
    engine = make(overlap=False, max_num_seqs=1, prefix_caching=False)
    return run(engine, add_all(engine))


@pytest.fixture(scope="module")
def texts(make, plain):
    prompts = [request.prompt_token_ids for request in add_all(make())]
    return [[*p, *answer[0]] for p, answer in zip(prompts, plain, strict=True)]


def test_the_plain_run_belongs_to_its_forms(make, plain):
    engine = make()
    decode = engine.tokenizer.decode
    answers = [(decode(ids), reason) for ids, reason, *_ in plain]
    whole = [text for text, reason in answers if reason == "stop"]
    assert len(whole) >= 6
    for text, reason in answers[2:5]:
        assert reason != "stop" or re.fullmatch("(ab|c[0-9]{1,3})+x", text)
    assert answers[6] in [("no", "stop"), ("never", "stop")]
    thought = plain[7][0]
    assert thought.index(END) <= 4
    assert decode(thought[thought.index(END) + 1 :]) in ("no", "never")
    assert re.fullmatch("[a-c]{4}", answers[8][0])
    assert END in plain[9][0][:4]


@pytest.mark.parametrize(
    "fields",
    [
        {"overlap": False},
        {"overlap": True},
        {"overlap": True, "max_num_seqs": 3},
        {"overlap": True, "max_num_batched_tokens": 5, "block_size": 4},
        {"overlap": True, "num_blocks": 22, "block_size": 4},
        {"overlap": False, "num_blocks": 22, "block_size": 4, "max_num_batched_tokens": 9},
        {"overlap": True, "grammar_backend": "llguidance"},
    ],
    ids=str,
)
def test_neither_batch_nor_overlap_nor_preemption_shows(make, plain, fields):
    engine = make(**fields)
    assert run(engine, add_all(engine)) == plain
    if fields.get("num_blocks") == 22:
        assert engine.metrics()["num_preemptions"] > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "too few"])
def test_drafts_do_not_show(make, plain, texts, fault, overlap):
    engine = make(Recites(texts, FAULTS[fault]), overlap=overlap, num_drafts=5, max_num_seqs=6)
    assert run(engine, add_all(engine)) == plain
    metrics = engine.metrics()
    assert metrics["num_draft_tokens"] > 0
    if fault == "right":
        # Prompts that are alike are told apart by their answers only.
        assert metrics["num_accepted_tokens"] >= metrics["num_draft_tokens"] - 2


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 4, 6, 8])
def test_every_depth(make, plain, texts, num_drafts):
    fields = {"max_num_seqs": 4, "num_drafts": num_drafts, "max_num_batched_tokens": 13}
    engine = make(Recites(texts, FAULTS["mixed"]), num_blocks=60, block_size=4, **fields)
    assert run(engine, add_all(engine)) == plain


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("when", range(0, 10, 2))
def test_an_abort_between_any_two_steps_hurts_nobody(make, plain, texts, when, overlap):
    engine = make(Recites(texts, FAULTS["mixed"]), overlap=overlap, num_drafts=3)
    requests = add_all(engine)
    for _ in range(when):
        engine.advance()
    victim = requests[when % len(requests)]
    engine.abort(victim)
    count = victim.num_output_tokens
    for request, found, expected in zip(requests, run(engine, requests), plain, strict=True):
        if request is not victim:
            assert found == expected
    assert victim.output_token_ids == plain[when % len(requests)][0][:count]


def test_preemption_at_random_steps_does_not_show(make, plain, texts):
    engine = make(Recites(texts, FAULTS["mixed"]), num_drafts=4, overlap=True)
    requests, rng = add_all(engine), random.Random(5)
    while engine.has_unfinished:
        engine.advance()
        engine.scheduler.preempt(rng.choice(requests))
        if rng.random() < 0.1:
            engine.scheduler.preempt_all()
    assert run(engine, requests) == plain
    assert engine.metrics()["num_preemptions"] > 10


def test_memory_that_runs_out_while_drawing_costs_no_token(make, plain, monkeypatch):
    engine = make(overlap=True)
    requests = add_all(engine)
    sample, calls = engine.runner.sampler.sample, iter(range(1000))

    def fails_at_times(*args, **kwargs):
        if next(calls) in (3, 9, 20):
            raise MemoryError("full")
        return sample(*args, **kwargs)

    monkeypatch.setattr(engine.runner.sampler, "sample", fails_at_times)
    assert run(engine, requests) == plain


def test_unconstrained_steps_are_drawn_without_a_mask(make, monkeypatch):
    engine = make()
    masks = []
    sample = engine.runner.sampler.sample

    def note(logits, rows, positions, pool, mask=None, drafts=()):
        masks.append(mask)
        return sample(logits, rows, positions, pool, mask, drafts)

    monkeypatch.setattr(engine.runner.sampler, "sample", note)
    requests = engine.add([5, 6], SamplingParams(max_tokens=3))
    run(engine, requests)
    assert masks and all(mask is None for mask in masks)
    assert engine.metrics()["num_mask_rows"] == 0


class FaultyBackend:
    """Grammars by name: what each does wrong is its text."""

    notations = frozenset({"ebnf"})

    def __init__(self, vocabulary):
        self.inner = XgrammarBackend(vocabulary)

    def compile(self, notation, text):
        return FaultyGrammar(self.inner.compile(notation, 'root ::= "a"+'), text)


class FaultyGrammar:
    def __init__(self, inner, text):
        self.inner, self.text = inner, text

    def matcher(self):
        if self.text == "no matcher":
            raise OSError("no matcher")
        return FaultyMatcher(self.inner.matcher(), self.text)


class FaultyMatcher:
    def __init__(self, inner, text):
        self.inner, self.text, self.count = inner, text, 0

    def accept(self, token_id):
        self.count += 1
        if self.text == "rejects what it allowed" and self.count > 3:
            return False
        if self.text == "raises in accept" and self.count > 3:
            raise OSError("in accept")
        return self.inner.accept(token_id)

    def rollback(self, num_tokens):
        if self.text == "raises in rollback" and self.count > 2:
            raise OSError("in rollback")
        self.count -= num_tokens
        self.inner.rollback(num_tokens)

    def fill(self, row):
        if self.text == "raises in fill" and self.count > 1:
            raise OSError("in fill")
        self.inner.fill(row)
        if self.text == "ends early" and self.count > 2:
            row.fill(0)
        if self.text == "allows nothing":
            row.fill(0)

    @property
    def can_end(self):
        if self.text == "raises in can_end" and self.count > 1:
            raise OSError("in can_end")
        return self.text == "ends early" and self.count > 2


class FaultySpec:
    name = "faulty"

    @staticmethod
    def load():
        return FaultyBackend


FAULTY = {
    "no matcher": "backend failed: no matcher",
    "rejects what it allowed": "does not belong to the grammar",
    "raises in accept": "OSError: in accept",
    "raises in rollback": "OSError: in rollback",
    "raises in fill": "OSError: in fill",
    "raises in can_end": "OSError: in can_end",
    "allows nothing": "allows no token of this vocabulary",
    "never ends": None,
    "ends early": None,
}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("with_drafts", [False, True])
def test_a_faulty_backend_ends_its_own_requests_only(make_engine, model_dir, overlap, with_drafts):
    proposer = Recites([[9, 8] + [67] * 30], FAULTS["right"]) if with_drafts else None
    fields = {"overlap": overlap, "grammar_backend": "faulty", "num_drafts": 3, "num_blocks": 200}
    free = SamplingParams(max_tokens=12, seed=3)
    lone = make_engine(overlap=False)
    (alone,) = run(lone, lone.add([5, 6, 7], free))
    loaded = replace(make_engine.loaded, grammar_backends=(FaultySpec(),), proposer=proposer)
    fields = {"dtype": "float32", "batch_invariant": True, "draft_guard": False, **fields}
    engine = Engine.from_loaded(EngineConfig.from_flat(str(model_dir), **fields), loaded)
    requests = {
        text: engine.add(
            [9, 8], SamplingParams(structured={"grammar": text}, max_tokens=12, temperature=0)
        )[0]
        for text in FAULTY
    }
    (neighbour,) = engine.add([5, 6, 7], free)
    results = run(engine, [*requests.values(), neighbour])
    assert results[-1] == alone
    for text, words in FAULTY.items():
        request = requests[text]
        made = engine.tokenizer.decode(request.output_token_ids)
        assert set(made) <= {"a"}
        if words is None:
            assert request.error is None
            reason = "length" if text == "never ends" else "stop"
            assert (request.finish_reason, len(made)) == (reason, 12 if reason == "length" else 3)
        elif request.error is None:
            assert text == "raises in rollback" and not with_drafts  # nothing to take back
        else:
            assert isinstance(request.error, GrammarError)
            assert words in str(request.error)


def test_a_slow_grammar_holds_up_nobody_and_may_be_aborted(make):
    engine = make()
    compiler = engine._structured._compiler
    gate, to_notation = threading.Event(), compiler._compile

    def slowly(spec, backend):
        gate.wait(30)
        return to_notation(spec, backend)

    compiler._compile = slowly
    form = {"structured": {"regex": "ab{3}"}, "max_tokens": 9}
    held = engine.add([5, 6], SamplingParams(n=3, **form))
    dropped = engine.add([5, 6], SamplingParams(n=2, **form))
    (free,) = engine.add([5, 6, 7], SamplingParams(max_tokens=5, seed=1))
    while not free.is_finished:
        engine.advance()
        engine.check_integrity()
    assert engine.metrics()["num_waiting"] == 5
    for victim in (held[0], dropped[1], dropped[0]):
        engine.abort(victim)
        engine.check_integrity()
    for _ in range(3):
        engine.advance()
    assert [r.finish_reason for r in held] == ["abort", None, None]
    gate.set()
    run(engine, held)
    assert [engine.tokenizer.decode(r.output_token_ids) for r in held] == ["", "abbb", "abbb"]
    assert all(r.finish_reason == "abort" and not r.output_token_ids for r in dropped)
    assert not engine._structured._masks._requests  # who ended before its grammar came, too
