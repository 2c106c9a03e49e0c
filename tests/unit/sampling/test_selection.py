"""The order of tokens: descending logit, ties to the lower id, whatever the width."""

import pytest
import torch
from deepinfer_core.sampling.selection import first_max, top_candidates
from hypothesis import given, settings
from hypothesis import strategies as st

NAN = float("nan")
INF = float("inf")


def logits_with_ties(num_rows, vocab_size, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(num_rows, vocab_size, generator=generator) * 2).round()
    logits[torch.rand(num_rows, vocab_size, generator=generator) < 0.2] = -INF
    return logits * torch.where(torch.rand(vocab_size, generator=generator) < 0.5, 1.0, -1.0)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 5), st.sampled_from([1, 2, 63, 64, 65, 130, 1000, 5000]),
    st.sampled_from([1, 2, 5, 20, 2000]), st.integers(0, 10**6),
)  # fmt: skip
def test_top_candidates_are_the_first_of_a_stable_sort(num_rows, vocab_size, k, seed):
    logits = logits_with_ties(num_rows, vocab_size, seed)
    values, ids = top_candidates(logits, k)
    for row in range(num_rows):
        order = sorted(range(vocab_size), key=lambda i: (-float(logits[row, i]), i))
        assert ids[row].tolist() == order[:k]
        assert values[row].tolist() == logits[row, order[:k]].tolist()


@pytest.mark.parametrize("vocab_size", [1, 64, 100, 5000])
def test_first_max_is_the_lowest_id_of_the_maximum(vocab_size):
    for seed in range(20):
        logits = logits_with_ties(4, vocab_size, seed)
        expected = [row.index(max(row)) for row in logits.tolist()]
        assert first_max(logits).tolist() == expected


@pytest.mark.parametrize("vocab_size", [1, 65, 5000])
@pytest.mark.parametrize("value", [-INF, NAN, INF])
def test_degenerate_rows_give_valid_ids(vocab_size, value):
    logits = torch.full((2, vocab_size), value)
    logits[1] = 0.0
    assert first_max(logits)[1] == 0
    values, ids = top_candidates(logits, 3)
    for found in (first_max(logits), ids):
        assert ((found >= 0) & (found < vocab_size)).all()
    assert ids[1].tolist() == list(range(min(3, vocab_size)))
    assert values.shape == ids.shape


def test_negative_zero_ties_with_zero():
    assert first_max(torch.tensor([[-1.0, -0.0, 0.0]])).tolist() == [1]
    assert top_candidates(torch.tensor([[-1.0, -0.0, 0.0]]), 2)[1].tolist() == [[1, 2]]


def test_no_rows():
    assert first_max(torch.zeros(0, 100)).shape == (0,)
