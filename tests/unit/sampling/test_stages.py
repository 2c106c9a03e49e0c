"""Every stage against plain Python, over random combinations of parameters and several steps."""

import torch
from deepinfer_core.sampling.result import EMPTY_SUPPORT
from deepinfer_core.sampling.stages import pack_bitmask
from hypothesis import given, settings
from hypothesis import strategies as st

V = 75
HUGE = 1e300  # infinite in float32
TOKENS = st.integers(0, V - 1)

optional_params = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.5, 1.0, 1.7])},
    optional={
        "top_k": st.sampled_from([-1, 1, 4, 30, 500]),
        "top_p": st.sampled_from([0.05, 0.5, 0.9, 0.999]),
        "min_p": st.sampled_from([0.01, 0.3, 1.0]),
        "repetition_penalty": st.sampled_from([0.7, 1.3, 3.0]),
        "presence_penalty": st.sampled_from([-1.0, 0.5, 2.0]),
        "frequency_penalty": st.sampled_from([-0.5, 0.25, 2.0]),
        "logit_bias": st.dictionaries(TOKENS, st.sampled_from([-100.0, -1.5, 2.5, 9.0])),
        "allowed_token_ids": st.lists(TOKENS, min_size=1, max_size=V, unique=True),
        "min_tokens": st.integers(0, 4),
    },
)
row = st.fixed_dictionaries(
    {
        "params": optional_params,
        "prompt": st.lists(TOKENS, min_size=1, max_size=12),
        "seed": st.integers(-(2**63), 2**64 - 1),
        "sample_index": st.integers(0, 3),
        "stops": st.frozensets(TOKENS, max_size=3),
        "bad": st.lists(st.lists(TOKENS, min_size=1, max_size=3), max_size=4),
        "grammar": st.one_of(st.none(), st.sets(TOKENS, min_size=1)),
    }
)


@settings(deadline=None, max_examples=150)
@given(st.lists(row, min_size=1, max_size=5), st.integers(0, 10**6))
def test_any_batch_of_rows_draws_what_plain_python_draws(
    obvious, make_rows, random_logits, specs, logits_seed
):
    rows = make_rows(V, max_num_seqs=8)
    seats = [7 - i for i in range(len(specs))]
    starts = []
    for seat, spec in zip(seats, specs, strict=True):
        fields = {k: v for k, v in spec.items() if k not in ("params", "grammar", "prompt")}
        starts.append(rows.start(seat, spec["prompt"], **fields, **spec["params"]))
    outputs = [[] for _ in specs]
    grammars = [spec["grammar"] for spec in specs]
    mask = None
    if any(grammars):
        everything = range(V)
        mask = torch.stack([pack_bitmask(list(g or everything), V) for g in grammars])
    for step in range(4):
        logits = random_logits(len(specs), V, logits_seed + step)
        found = rows.step(logits, seats, mask)
        for i, start in enumerate(starts):
            allowed = grammars[i] if mask is not None else None
            token, _ = obvious.draw(logits[i].numpy(), start, outputs[i], allowed)
            if token is None:
                assert found.errors[i] == EMPTY_SUPPORT
            else:
                assert i not in found.errors
                assert found.token_ids[i] == token, (step, i)
            outputs[i].append(found.token_ids[i])


def test_bad_words_across_steps(make_rows):
    rows = make_rows(V)
    rows.start(0, [1, 5], temperature=0, bad=[[5, 6], [7, 8, 9], [3]])
    logits = torch.zeros(1, V)

    def greedy(*best):
        """The token drawn when these are the most likely, in this order."""
        wanted = logits.clone()
        for rank, token in enumerate(best):
            wanted[0, token] = 10.0 - rank
        return rows.step(wanted, [0]).token_ids[0]

    assert greedy(6, 7) == 7  # the prompt ended in 5
    assert greedy(6, 3) == 6  # 5 is no longer the last token
    assert greedy(3, 7) == 7  # 3 alone is never allowed
    assert greedy(8, 0) == 8
    assert greedy(9, 2) == 2  # 7, 8 were drawn on the device; 9 would finish the word
    assert greedy(9, 2) == 9


def test_a_bad_word_longer_than_the_history_is_not_matched_before_it_fits(make_rows):
    rows = make_rows(V)
    rows.start(0, [4], temperature=0, bad=[[0, 4, 9]])
    logits = torch.zeros(1, V)
    logits[0, 9] = 5.0
    assert rows.step(logits, [0]).token_ids == [9]


def test_min_tokens_counts_output_tokens(make_rows):
    rows = make_rows(V)
    rows.start(3, [1, 2, 3], temperature=0, min_tokens=2, stops=[9, 10])
    logits = torch.zeros(1, V)
    logits[0, 9], logits[0, 10], logits[0, 20] = 3.0, 2.0, 1.0
    assert [rows.step(logits, [3]).token_ids[0] for _ in range(4)] == [20, 20, 9, 9]


def test_a_bias_does_not_bring_back_what_is_masked(make_rows):
    rows = make_rows(V)
    rows.start(0, temperature=0, allowed_token_ids=[4, 5], logit_bias={6: HUGE, 5: 1.0})
    assert rows.step(torch.zeros(1, V), [0]).token_ids == [5]


def test_an_infinite_bias_forces_the_token(make_rows):
    for params in ({"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}):
        rows = make_rows(V)
        rows.start(0, logit_bias={6: HUGE}, logprobs=1, logprobs_mode="processed", **params)
        found = rows.step(torch.randn(1, V), [0])
        assert found.token_ids == [6]
        assert found.errors == {}
        assert found.logprobs[0].logprob == 0.0


def test_penalties_forget_a_row_that_starts_again(make_rows):
    rows = make_rows(V)
    logits = torch.zeros(1, V)
    logits[0, 8], logits[0, 9] = 1.0, 0.9
    for _ in range(2):
        rows.start(0, [8], temperature=0, frequency_penalty=0.2)
        assert [rows.step(logits, [0]).token_ids[0] for _ in range(3)] == [8, 9, 8]


def test_penalties_forget_the_prompt_of_a_row_that_starts_again(make_rows):
    rows = make_rows(V)
    logits = torch.zeros(1, V)
    logits[0, 8], logits[0, 9] = 1.0, 0.9
    for prompt, drawn in (([8], 9), ([9], 8), ([8], 9)):
        rows.start(0, prompt, temperature=0, repetition_penalty=2.0)
        assert rows.step(logits, [0]).token_ids == [drawn]


def test_lists_of_a_row_are_those_of_its_last_start(make_rows):
    """Tables are kept while rows stay the same; the same rows may be other requests."""
    rows = make_rows(V)
    logits = torch.zeros(1, V)
    logits[0, :4] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    for token in (0, 1, 0):
        rows.start(0, temperature=0, bad=[[token]])
        assert rows.step(logits, [0]).token_ids == [1 - token]
        rows.start(0, temperature=0, min_tokens=1, stops=[token])
        assert rows.step(logits, [0]).token_ids == [1 - token]
        rows.start(0, temperature=0, logit_bias={token: -5.0})
        assert rows.step(logits, [0]).token_ids == [1 - token]


def test_penalty_slots_grow_and_are_reused(make_rows):
    rows = make_rows(V)
    logits = torch.zeros(5, V)
    logits[:, 8], logits[:, 9] = 1.0, 0.9
    for _ in range(3):
        for seat in range(5):
            rows.start(seat, [8], temperature=0, presence_penalty=0.5)
        assert rows.step(logits, list(range(5))).token_ids == [8] * 5
        assert rows.step(logits, list(range(5))).token_ids == [9] * 5
        rows.sampler.free_row(2)
        assert rows.sampler._penalties._counts.shape[0] == 8
        rows.start(2, [8], temperature=0, presence_penalty=0.5)
        assert rows.step(logits, list(range(5))).token_ids == [8] * 5


def test_a_row_sampled_after_it_was_freed_is_harmless(make_rows):
    rows = make_rows(V)
    everything = {
        "repetition_penalty": 2.0, "logit_bias": {1: 1.0}, "min_tokens": 3,
        "allowed_token_ids": [3, 4], "logprobs": 1,
    }  # fmt: skip
    rows.start(0, [1], stops=[2], bad=[[1, 2]], **everything)
    rows.start(1, [1], stops=[2], bad=[[1, 2]], seed=1, **everything)
    logits = torch.randn(2, V)
    both = rows.step(logits, [0, 1])
    rows.sampler.free_row(0)
    after = rows.step(logits, [0, 1])
    assert 0 <= after.token_ids[0] < V
    assert after.token_ids[1] in (3, 4)
    assert both.errors == after.errors == {}


def test_an_empty_support_ends_only_its_row(make_rows):
    rows = make_rows(V)
    rows.start(0, temperature=0)
    rows.start(1, allowed_token_ids=[3], bad=[[3]])
    rows.start(2, logit_bias={i: -HUGE for i in range(V)}, top_p=0.5)
    rows.start(3, seed=5)
    logits = torch.randn(4, V)
    found = rows.step(logits, [0, 1, 2, 3])
    assert found.errors == {1: EMPTY_SUPPORT, 2: EMPTY_SUPPORT}
    alone = make_rows(V)
    alone.start(3, seed=5)
    assert alone.step(logits[3:], [3]).token_ids == found.token_ids[3:]


def test_logits_that_are_not_numbers_end_only_their_row(make_rows):
    rows = make_rows(V)
    for seat, params in enumerate(({}, {"top_k": 3}, {"top_p": 0.5}, {"logprobs": 2}, {})):
        rows.start(seat, seed=5, **params)
    logits = torch.randn(5, V)
    logits[:4, 10] = float("nan")
    found = rows.step(logits, [0, 1, 2, 3, 4])
    assert sorted(found.errors) == [0, 1, 2, 3]
    assert all(0 <= token < V for token in found.token_ids)


def test_pack_bitmask_sets_every_bit():
    mask = pack_bitmask([0, 31, 32, 70], 71)
    assert mask.dtype == torch.int32
    bits = [(int(word) >> bit) & 1 for word in mask for bit in range(32)]
    assert [i for i, bit in enumerate(bits) if bit] == [0, 31, 32, 70]
