"""Whatever is guessed, answers are those of the plain run, and nothing leaks."""

import random
from itertools import takewhile

import pytest
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.errors import ConfigError
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams

from .drafted import NUM_TOKENS, PROMPTS, STAGES, STYLES, add_all, run


class Recites:
    """Knows the answers; `change` makes of the right tokens what is proposed."""

    def __init__(self, answers, change):
        self.answers, self.change, self.rng = answers, change, random.Random(1)

    def start(self):
        return Recital(self)


class Recital:
    def __init__(self, whole):
        self.whole, self.ids = whole, []

    def extend(self, token_ids):
        self.ids += token_ids

    def propose(self, num_tokens):
        count = len(self.ids)
        texts = [text for text in self.whole.answers if text[:count] == self.ids]
        # Prompts that are alike may go on alike for a while: recite what is certain.
        ahead = zip(*(text[count : count + num_tokens] for text in texts), strict=False)
        certain = [same[0] for same in takewhile(lambda ids: len(set(ids)) == 1, ahead)]
        return self.whole.change(certain, self.whole.rng)


def fails(right, rng):
    if rng.random() < 0.3:
        raise RuntimeError("a bug")
    return right


FAULTS = {
    "right": lambda right, rng: right,
    "wrong": lambda right, rng: [(token + 1) % 256 for token in right],
    "mixed": lambda right, rng: [t if rng.random() < 0.7 else rng.randrange(256) for t in right],
    "nonsense": lambda right, rng: [rng.choice((-5, 3, 10**9)) for _ in range(4)],
    "special": lambda right, rng: [*right[:2], 0, 1, 2],
    "too many": lambda right, rng: right + [5] * 50,
    "too few": lambda right, rng: right[: rng.randint(0, 2)],
    "fails": fails,
}


@pytest.fixture(scope="module")
def plain(make_engine):
    engine = make_engine(STAGES, overlap=False, max_num_seqs=1, prefix_caching=False)
    return run(engine, add_all(engine))


@pytest.fixture(scope="module")
def texts(plain):
    prompts = [p for i, s in enumerate(STYLES) for p in [PROMPTS[i % 4]] * s.get("n", 1)]
    return [prompt + answer[0] for prompt, answer in zip(prompts, plain, strict=True)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_proposer_changes_an_answer(make_engine, plain, texts, fault, overlap):
    proposer = Recites(texts, FAULTS[fault])
    engine = make_engine(STAGES, proposer, overlap=overlap, num_drafts=5, max_num_seqs=6)
    requests = add_all(engine)
    assert run(engine, requests) == plain
    metrics = engine.metrics()
    accepted, drafted = metrics["num_accepted_tokens"], metrics["num_draft_tokens"]
    assert accepted == sum(sum(r.drafts.accepted) for r in requests if r.drafts)
    assert drafted == sum(sum(r.drafts.drafted) for r in requests if r.drafts)
    assert sum(metrics["drafted_by_position"]) == drafted
    assert len(metrics["drafted_by_position"]) <= 5
    if fault == "right":
        assert metrics["accepted_by_position"] == metrics["drafted_by_position"]
        assert metrics["num_steps"] < 60
    assert drafted > 0
    if fault != "nonsense":  # which is right at times
        assert (accepted > 0) == (fault != "wrong")


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 4, 6, 8])
def test_every_depth(make_engine, plain, texts, num_drafts):
    proposer = Recites(texts, FAULTS["mixed"])
    fields = {"max_num_seqs": 4, "num_drafts": num_drafts, "max_num_batched_tokens": 13}
    engine = make_engine(STAGES, proposer, block_size=4, num_blocks=60, **fields)
    assert run(engine, add_all(engine)) == plain
    accepted = engine.metrics()["accepted_by_position"]
    assert all(accepted[: min(num_drafts, 5)])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("when", range(0, 12, 2))
def test_an_abort_between_any_two_steps_hurts_nobody(make_engine, plain, texts, when, overlap):
    engine = make_engine(STAGES, Recites(texts, FAULTS["mixed"]), overlap=overlap, num_drafts=3)
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


def test_a_failed_draw_behind_accepted_drafts_keeps_the_tokens_before_it(make_engine, texts, plain):
    """The row has nothing left to draw at its sixth token; five are its answer, then the error."""
    longest = max(plain, key=lambda answer: len(answer[0]))[0]
    end = len(PROMPTS[0]) + 5

    def block(logits, context):
        return logits.masked_fill_((context.positions >= end)[:, None], -float("inf"))

    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, logits_stages=["block"])
    found = []
    for proposer in (None, Recites(texts, FAULTS["right"])):
        engine = make_engine({"block": block}, proposer, num_drafts=8)
        (request,) = engine.add(PROMPTS[0], params)
        run(engine, [request])
        found.append((request.output_token_ids, request.finish_reason, str(request.error)))
        assert len(request.output_token_ids) == 5 <= len(longest)
    assert found[0] == found[1]
    assert found[1][1] == "error"


def test_memory_that_runs_out_in_a_step_with_drafts_costs_no_token(make_engine, plain, texts):
    engine = make_engine(STAGES, Recites(texts, FAULTS["mixed"]), num_drafts=5)
    submit, rng = engine.runner.submit, random.Random(2)

    def submit_or_fail(plan):
        flight = submit(plan)
        if plan.num_drafts and rng.random() < 0.3:
            raise MemoryError
        return flight

    engine.runner.submit = submit_or_fail
    assert run(engine, add_all(engine)) == plain


def test_those_without_a_guess_overlap(make_engine):
    """A request waits for its step only where there is something to be drafted."""

    class Silent(Recites):
        def __init__(self):
            super().__init__([], lambda right, rng: [])

    steps = []
    for proposer in (None, Silent()):
        engine = make_engine(STAGES, proposer, overlap=True)
        add_all(engine)
        steps.append(0)
        while engine.has_unfinished:
            engine.advance()
            steps[-1] += 1
    assert steps[0] == steps[1]


def test_a_proposer_that_nobody_has_is_an_error(model_dir):
    config = EngineConfig.from_flat(str(model_dir), dtype="float32", proposer="oracle")
    with pytest.raises(ConfigError) as caught:
        Engine.from_config(config, PluginHost(load_entry_points=False))
    assert caught.value.field == "speculative.proposer"
    assert "ngram" in caught.value.allowed
