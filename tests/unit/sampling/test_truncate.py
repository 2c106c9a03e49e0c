"""top_k and top_p: three ways of computing, one set."""

import pytest
import torch
from deepinfer_core.sampling.truncate import (
    truncate_by_selecting,
    truncate_by_sorting,
    truncate_ranked,
    truncate_whole,
)
from hypothesis import given, settings
from hypothesis import strategies as st

INF = float("inf")


def descending(*rows):
    return torch.tensor(rows).log()


def kept(values):
    return [[i for i, v in enumerate(row) if v > -INF] for row in values.tolist()]


def test_top_p_keeps_the_token_that_reaches_it():
    values = descending([0.5, 0.25, 0.125, 0.125])
    for top_p, expected in (
        (0.4, [0]),
        (0.5, [0]),
        (0.51, [0, 1]),
        (0.75, [0, 1]),
        (0.9, [0, 1, 2, 3]),
    ):
        assert kept(truncate_ranked(values, None, torch.tensor([top_p]))) == [expected]


def test_top_p_of_one_keeps_even_what_weighs_nothing():
    values = torch.tensor([[0.0, -50.0, -1000.0]])
    assert kept(truncate_ranked(values, None, torch.tensor([1.0]))) == [[0, 1, 2]]
    for function in (truncate_by_sorting, truncate_by_selecting):
        assert kept(function(values.clone(), None, torch.tensor([1.0]))) == [[0, 1, 2]]


def test_the_best_token_always_stays():
    for function in (truncate_by_sorting, truncate_by_selecting):
        assert kept(function(torch.zeros(1, 1000), None, torch.tensor([1e-7]))) == [[0]]


def test_top_p_counts_what_top_k_left():
    values = descending([0.4, 0.3, 0.2, 0.1])
    # Of 0.7, the first token alone has 0.571.
    result = truncate_ranked(values, torch.tensor([2]), torch.tensor([0.55]))
    assert kept(result) == [[0]]


def test_top_k_beyond_the_vocabulary_and_zero_keep_all():
    values = torch.zeros(2, 5)
    assert kept(truncate_whole(values, torch.tensor([50, 0]), None)) == [[0, 1, 2, 3, 4]] * 2


def test_ties_at_the_border_go_to_the_lower_id():
    values = torch.zeros(2, 4)
    result = truncate_whole(values, torch.tensor([3, 0]), torch.tensor([1.0, 0.5]))
    assert kept(result) == [[0, 1, 2], [0, 1]]


@settings(deadline=None, max_examples=80)
@given(
    st.integers(0, 10**6), st.integers(1, 400), st.sampled_from([0.3, 1.0, 5.0]),
    st.lists(
        st.tuples(st.sampled_from([0, 1, 3, 50]), st.sampled_from([1.0, 1e-6, 0.3, 0.9, 0.999999])),
        min_size=1, max_size=4,
    ),
)  # fmt: skip
def test_selecting_gives_what_sorting_gives(seed, vocab_size, scale, params):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(len(params), vocab_size, generator=generator) * scale
    if seed % 2:
        values = values.round()
    values -= values.amax(dim=-1, keepdim=True)
    values[:, 1:][torch.rand(len(params), vocab_size - 1, generator=generator) < 0.2] = -INF
    top_k = torch.tensor([k for k, _ in params])
    top_p = torch.tensor([p for _, p in params])
    expected = truncate_by_sorting(values.clone(), top_k, top_p)
    assert torch.equal(truncate_by_selecting(values.clone(), top_k, top_p), expected)


@pytest.mark.parametrize("value", [-INF, float("nan")])
def test_rows_without_a_distribution_do_not_fail(value):
    values = torch.full((1, 100), value)
    for function in (truncate_by_sorting, truncate_by_selecting):
        assert function(values.clone(), None, torch.tensor([0.5])).shape == (1, 100)


def test_a_large_vocabulary_gives_what_sorting_gives():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 9000, generator=generator) * torch.tensor([[1.0], [6.0]])
    values -= values.amax(dim=-1, keepdim=True)
    top_p = torch.tensor([0.9, 0.95])
    expected = truncate_by_sorting(values.clone(), None, top_p)
    assert torch.equal(truncate_whole(values.clone(), None, top_p), expected)
