"""What a row draws depends on nothing but the row; distributions; what costs nothing."""

import random

import pytest
import torch
from deepinfer_core.ops.table import reference_table
from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.sampling.result import SampledTokens, to_host
from deepinfer_core.sampling.sampler import Sampler
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduling.plan import RowStart, TokenLogprobs

V = 530
KINDS = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.5},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 50, "top_p": 0.8},
    {"top_k": 3},
    {"top_k": 2000, "min_p": 0.01},
    {"min_p": 0.1},
    {"logprobs": 4},
    {"logprobs": 2, "logprobs_mode": "processed", "top_k": 7, "top_p": 0.9},
    {"logprobs": 0, "logprobs_mode": "processed", "top_p": 0.5},
    {"presence_penalty": 0.5, "frequency_penalty": 0.1, "logprobs": 1},
    {"logit_bias": {3: 4.0}, "min_tokens": 5},
    {"allowed_token_ids": list(range(100)), "temperature": 3.0},
]


def run_alone(make_rows, params, seed, logits, seat=0, **start):
    rows = make_rows(V)
    rows.start(seat, [5, 6, 7], seed=seed, stops=[9], bad=[[5, 6], [8]], **start, **params)
    return [rows.step(step[None], [seat]) for step in logits]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(make_rows, random_logits, threads):
    """Tokens and bits of log-probabilities, in random subsets and orders of rows."""
    num_steps = 5
    logits = torch.stack([random_logits(len(KINDS), V, seed) for seed in range(num_steps)])
    alone = [run_alone(make_rows, p, i, logits[:, i]) for i, p in enumerate(KINDS)]
    choose = random.Random(threads)
    old = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(6):
            rows = make_rows(V)
            seats = choose.sample(range(16), len(KINDS))
            steps_done = [0] * len(KINDS)
            for i, params in enumerate(KINDS):
                rows.start(seats[i], [5, 6, 7], seed=i, stops=[9], bad=[[5, 6], [8]], **params)
            while any(done < num_steps for done in steps_done):
                open_rows = [i for i, done in enumerate(steps_done) if done < num_steps]
                chosen = choose.sample(open_rows, choose.randint(1, len(open_rows)))
                batch = torch.stack([logits[steps_done[i], i] for i in chosen])
                found = rows.step(batch, [seats[i] for i in chosen])
                for place, i in enumerate(chosen):
                    expected = alone[i][steps_done[i]]
                    assert found.token_ids[place] == expected.token_ids[0], KINDS[i]
                    wanted = expected.logprobs and expected.logprobs[0]
                    assert (found.logprobs and found.logprobs[place]) == wanted, KINDS[i]
                    steps_done[i] += 1
    finally:
        torch.set_num_threads(old)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_large_vocabulary_has_the_same_bits_alone_and_in_a_batch(make_rows, threads):
    """Large enough that torch spreads its operations over threads."""
    vocab_size, kinds = 40_000, KINDS[2:10]
    logits = torch.randn(len(kinds), vocab_size, generator=torch.Generator().manual_seed(0)) * 2
    old = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = make_rows(vocab_size)
        for seat, params in enumerate(kinds):
            rows.start(seat, seed=seat, **params)
        together = rows.step(logits, list(range(len(kinds))))
        torch.set_num_threads(1)
        for seat, params in enumerate(kinds):
            rows = make_rows(vocab_size)
            rows.start(0, seed=seat, **params)
            alone = rows.step(logits[seat : seat + 1], [0])
            assert together.token_ids[seat] == alone.token_ids[0]
            assert together.logprobs[seat] == (alone.logprobs and alone.logprobs[0])
    finally:
        torch.set_num_threads(old)


def test_several_positions_of_one_row_draw_what_they_draw_one_by_one(make_rows, random_logits):
    """What verification of drafts will need: a row in several logits rows of a step."""
    logits = random_logits(3, V, 5)
    for params in ({}, {"top_k": 5}, {"top_p": 0.8}, {"temperature": 0, "logit_bias": {4: 2.0}}):
        rows = make_rows(V)
        rows.start(2, [3, 4], seed=8, bad=[[4, 6]], **params)
        one_by_one = [rows.step(logits[i : i + 1], [2]).token_ids[0] for i in range(3)]
        at_once = rows.sampler.sample(logits.clone(), [2, 2, 2], [2, 3, 4], rows.pool)
        assert at_once.token_ids.tolist() == one_by_one


def test_no_value_is_read_back_from_the_device():
    """On the meta device tensors have no values, so any read would raise."""
    sampler = Sampler(
        reference_table(), max_num_seqs=len(KINDS), vocab_size=V, device="meta",
        custom_stages={"shift": lambda logits, context: logits + context.history(3).sum()},
    )  # fmt: skip
    pool = TokenPool(len(KINDS), "meta")
    for row, params in enumerate(KINDS):
        params = SamplingParams(**params, logits_stages=["shift"] if row % 2 else [])
        pool.start_row(row, [1, 2, 3])
        bad = ((5, 6), (7,)) if row % 3 else ()
        sampler.start_row(RowStart(row, params, row, 0, [1, 2, 3], frozenset({9}), bad))
    rows, positions = list(range(len(KINDS))), [3] * len(KINDS)
    mask = torch.zeros(len(KINDS), -(-V // 32), dtype=torch.int32, device="meta")
    for grammar in (mask, None):
        logits = torch.zeros(len(KINDS), V, device="meta")
        sampled = sampler.sample(logits, rows, positions, pool, grammar)
        assert sampled.token_ids.shape == sampled.failed.shape == (len(KINDS),)
        assert len(sampled.logprobs) == 3
        assert sampled.errors == {}
    greedy = sampler.sample(torch.zeros(1, V, device="meta"), [0], [4], pool)
    assert greedy.token_ids.device.type == "meta"
    places = pool.places(*(torch.tensor(n, device="meta") for n in (rows, positions)))
    pool.write(places, sampled.token_ids)


def draw_many(make_rows, logits, num_tokens, seat=0, **start):
    rows = make_rows(logits.shape[-1])
    rows.start(seat, **start)
    return [rows.step(logits[None], [seat]).token_ids[0] for _ in range(num_tokens)]


def test_a_seed_gives_the_same_tokens_in_every_seat(make_rows, random_logits):
    logits = random_logits(1, V, 1)[0]
    first = draw_many(make_rows, logits, 20, seed=11)
    assert draw_many(make_rows, logits, 20, seed=11, seat=9) == first
    assert draw_many(make_rows, logits, 20, seed=12) != first
    assert draw_many(make_rows, logits, 20, seed=11, sample_index=1) != first
    # The noise belongs to the absolute position, so a longer prompt starts further on.
    longer = draw_many(make_rows, logits, 19, seed=11, prompt=[1, 2])
    assert longer == first[1:]


def test_draws_do_not_depend_on_what_the_sampler_did_before(make_rows, random_logits):
    """A global generator would make a draw depend on the server's history."""
    logits = random_logits(1, V, 1)
    rows = make_rows(V)
    rows.start(0, seed=3)
    first = [rows.step(logits, [0]).token_ids for _ in range(5)]
    torch.manual_seed(0)
    for seed in range(7):
        rows.start(0, seed=seed + 100, top_p=0.5)
        rows.step(logits, [0])
    rows.start(0, seed=3)
    assert [rows.step(logits, [0]).token_ids for _ in range(5)] == first


def test_negative_and_unsigned_seeds_of_the_same_bits_are_the_same(make_rows, random_logits):
    logits = random_logits(1, V, 1)[0]
    negative = draw_many(make_rows, logits, 5, seed=-3)
    assert draw_many(make_rows, logits, 5, seed=2**64 - 3) == negative


LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -1.0])


def softmax_of(kept):
    logits = torch.full_like(LOGITS, -float("inf"))
    logits[kept] = LOGITS[kept]
    return logits.softmax(dim=-1)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, softmax_of([0, 1, 2, 3, 4, 5])),
        ({"temperature": 2.0}, (LOGITS / 2).softmax(dim=-1)),
        ({"top_k": 3}, softmax_of([0, 1, 2])),
        ({"top_p": 0.6}, softmax_of([0, 1])),
        ({"min_p": 0.3}, softmax_of([0, 1, 2])),
        ({"top_k": 5, "top_p": 0.8}, softmax_of([0, 1, 2])),
        ({"allowed_token_ids": [1, 4, 5]}, softmax_of([1, 4, 5])),
        ({"logit_bias": {5: 3.0}}, (LOGITS + torch.tensor([0, 0, 0, 0, 0, 3.0])).softmax(-1)),
        ({"repetition_penalty": 2.0}, (LOGITS / torch.tensor([1, 2, 1, 1, 1, 1])).softmax(-1)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_each_stage_gives_its_distribution(make_rows, chi_square, params, expected):
    """One draw of each of many requests, as users see it."""
    num_seats, counts = 400, [0] * 6
    for first_seed in range(0, 4000, num_seats):
        rows = make_rows(6, max_num_seqs=num_seats)
        for seat in range(num_seats):
            rows.start(seat, seed=first_seed + seat, **params)
        drawn = rows.step(LOGITS.expand(num_seats, -1), list(range(num_seats))).token_ids
        counts = [count + drawn.count(token) for token, count in enumerate(counts)]
    probabilities = expected.tolist()
    assert chi_square(counts, probabilities)
    assert not chi_square(
        counts, [p * f for p, f in zip(probabilities, (0.85, 1.15) * 3, strict=True)]
    )


@pytest.mark.parametrize("temperature", [1e-6, 0.01])
def test_a_tiny_temperature_is_greedy(make_rows, random_logits, temperature):
    logits = random_logits(1, V, 1)
    rows = make_rows(V)
    rows.start(0, temperature=temperature)
    assert rows.step(logits * 3, [0]).token_ids == [int(logits.argmax())]


class CountingOps:
    """The ops of a sampler, each of which notes its call."""

    def __init__(self, rows):
        self.calls = []
        for name in ("_draw_op", "_stages_op", "_logprobs_op"):
            setattr(rows.sampler, name, self.noting(name, getattr(rows.sampler, name)))

    def noting(self, name, function):
        def call(*args, **kwargs):
            self.calls.append(name)
            return function(*args, **kwargs)

        return call


def test_greedy_rows_without_extras_are_one_argmax(make_rows, random_logits):
    rows = make_rows(V)
    for seat in range(3):
        rows.start(seat, temperature=0)
    counting = CountingOps(rows)
    logits = random_logits(3, V, 2)
    sampled = rows.sample(logits, [0, 1, 2])
    assert counting.calls == ["_draw_op"]
    assert sampled.token_ids.tolist() == logits.argmax(dim=-1).tolist()
    assert sampled.token_ids.dtype == torch.int32
    assert sampled.failed.tolist() == [False] * 3


def test_a_row_without_numbers_fails_alone_as_it_does_in_any_batch(make_rows, random_logits):
    """A plain greedy row used to draw the NaN, but to fail when another row was in the step."""
    rows = make_rows(V)
    for seat in range(3):
        rows.start(seat, temperature=0)
    rows.start(3, temperature=1.0)
    logits = random_logits(4, V, 2)
    logits[0, 7], logits[1] = float("nan"), float("-inf")
    expected = [True, True, False]
    assert rows.sample(logits[:3].clone(), [0, 1, 2]).failed.tolist() == expected
    assert rows.sample(logits, [0, 1, 2, 3]).failed.tolist() == [*expected, False]


def test_a_row_that_starts_again_with_extras_is_no_longer_plain(make_rows, random_logits):
    rows = make_rows(V)
    rows.start(0, temperature=0)
    rows.start(0, temperature=0, logprobs=0)
    assert rows.step(random_logits(1, V, 2), [0]).logprobs is not None
    for params in ({"temperature": 0}, {"top_k": 3}):
        rows.start(0, logprobs=2)
        rows.start(0, **params)
        assert rows.step(random_logits(1, V, 2), [0]).logprobs is None


def test_no_rows(make_rows):
    found = make_rows(V).step(torch.zeros(0, V), [])
    assert (found.token_ids, found.logprobs, found.errors) == ([], None, {})


def test_logits_with_strides(make_rows, random_logits):
    wide = random_logits(4, V + 7, 1)
    results = []
    for logits in (wide[:, :V], wide[:, :V].contiguous()):
        rows = make_rows(V)
        for seat, params in enumerate(({}, {"top_k": 4}, {"logit_bias": {1: 2.0}}, {"top_p": 0.5})):
            rows.start(seat, seed=seat, **params)
        sampled = rows.sampler.sample(logits, [0, 1, 2, 3], [1] * 4, rows.pool)
        results.append(sampled.token_ids.tolist())
    assert results[0] == results[1]


def test_to_host_orders_logprobs_by_logits_row(make_rows, random_logits):
    rows = make_rows(V)
    rows.start(0, seed=1, logprobs=3)
    rows.start(1, seed=2)
    rows.start(2, seed=3, logprobs=1, logprobs_mode="processed", top_k=5)
    rows.start(3, temperature=0, logprobs=0)
    logits = random_logits(4, V, 1)
    found = rows.step(logits, [0, 1, 2, 3])
    assert [entry and len(entry.top_ids) for entry in found.logprobs] == [3, None, 1, 0]
    dense = logits.log_softmax(dim=-1)
    for i in (0, 3):
        entry = found.logprobs[i]
        assert entry.token_id == found.token_ids[i]
        assert entry.logprob == pytest.approx(float(dense[i, entry.token_id]), abs=1e-6)
    assert found.logprobs[3].rank == 1
    assert found.logprobs[0].top_ids == tuple(
        logits[0].sort(descending=True, stable=True)[1][:3].tolist()
    )


def test_processed_logprobs_are_of_what_could_be_drawn(make_rows, obvious, random_logits):
    logits = random_logits(1, V, 1)
    for params in (
        {"top_k": 4},
        {"top_p": 0.3, "temperature": 0.6},
        {"temperature": 0, "logit_bias": {3: 50.0}},
    ):
        rows = make_rows(V)
        start = rows.start(0, logprobs=6, logprobs_mode="processed", **params)
        entry = rows.step(logits, [0]).logprobs[0]
        token, processed = obvious.draw(logits[0].numpy(), start, [])
        expected = torch.tensor(processed).log_softmax(dim=-1)
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(expected[token]), abs=1e-6)
        for top_id, value in zip(entry.top_ids, entry.top_logprobs, strict=True):
            assert value == pytest.approx(float(expected[top_id]), abs=1e-5)


def test_to_host_keeps_the_errors_of_stages():
    sampled = SampledTokens(torch.tensor([1, 2]), torch.tensor([True, True]), errors={0: "mine"})
    assert to_host(sampled.to_host()).errors[0] == "mine"
    assert set(to_host(sampled).errors) == {0, 1}


def test_host_values_are_plain(make_rows, random_logits):
    rows = make_rows(V)
    rows.start(0, logprobs=2)
    found = rows.step(random_logits(1, V, 1), [0])
    entry = found.logprobs[0]
    assert isinstance(entry, TokenLogprobs)
    assert [type(v) for v in (entry.token_id, entry.logprob, entry.rank)] == [int, float, int]
    assert type(found.token_ids[0]) is int
