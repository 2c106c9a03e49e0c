"""The drafts that are computed are those that give the most tokens per second."""

import itertools
import random

import pytest
from deepinfer_core.speculative.budget import DraftCosts, StepCosts, admit, best_depth

FLAT = StepCosts((1,), (0.01,))
STEEP = StepCosts((1, 2), (0.01, 0.02))


def rate(survivals, counts, costs):
    expected = len(survivals) + sum(sum(row[:n]) for row, n in zip(survivals, counts, strict=True))
    return expected / costs.of(len(survivals) + sum(counts))


def test_no_choice_is_better():
    rng = random.Random(1)
    for _ in range(100):
        survivals = []
        for _ in range(rng.randint(1, 3)):
            row = [rng.random()]
            while len(row) < rng.randint(0, 3):
                row.append(row[-1] * rng.random())
            survivals.append(row[: rng.randint(0, 3)])
        seconds = list(itertools.accumulate(rng.random() for _ in range(5)))
        costs = StepCosts((1, 2, 4, 6, 9), tuple(seconds))
        counts = admit(survivals, costs)
        assert all(0 <= n <= len(row) for n, row in zip(counts, survivals, strict=True))
        choices = itertools.product(*(range(len(row) + 1) for row in survivals))
        best = max(rate(survivals, choice, costs) for choice in choices)
        assert rate(survivals, counts, costs) == pytest.approx(best)


def test_what_costs_nothing_is_computed_and_what_costs_a_step_is_not():
    assert admit([[0.5, 0.1], [0.2]], FLAT) == [2, 1]
    assert admit([[0.9, 0.8], []], STEEP) == [0, 0]


def test_costs_lie_on_lines_between_what_was_measured():
    costs = StepCosts((1, 3, 5), (1.0, 2.0, 6.0))
    assert [costs.of(n) for n in (1, 2, 3, 4, 5, 6)] == [1.0, 1.5, 2.0, 4.0, 6.0, 8.0]
    assert FLAT.of(100) == 0.01


def test_the_total_follows_from_earlier_estimates_and_goes_to_the_likeliest_of_now():
    costs = StepCosts((1, 2, 3, 4, 5, 6), (1.0, 1.0, 1.0, 1.0, 2.0, 3.0))
    now = [[0.2, 0.1], [0.9, 0.8]]
    assert admit(now, costs) == [0, 2]
    assert admit(now, costs, earlier=[[0.0, 0.0], [0.0, 0.0]]) == [0, 0]
    assert admit([[0.0], [0.9, 0.8]], costs, earlier=[[1.0], [1.0, 0.0]]) == [0, 2]


def test_a_drafter_goes_as_deep_as_it_gains():
    costs = StepCosts((1, 100), (1.0, 1.5))
    sure = [0.9, 0.8, 0.7, 0.6]
    assert best_depth(sure, 1, costs, DraftCosts(0.0, 0.0, 0.0)) == 4
    assert best_depth(sure, 1, costs, DraftCosts(0.0, 0.1, 0.1)) == 4
    assert best_depth(sure, 1, costs, DraftCosts(0.0, 0.1, 0.5)) == 1
    assert best_depth(sure, 1, costs, DraftCosts(0.0, 1.0, 1.0)) == 0
    assert best_depth(sure, 1, costs, DraftCosts(5.0, 0.0, 0.0)) == 0
    # Many requests fill a step by themselves: each token more then costs as much as it gives.
    assert best_depth([0.5], 60, StepCosts((1, 60, 120), (1, 1, 2)), DraftCosts(0, 0, 0)) == 0
