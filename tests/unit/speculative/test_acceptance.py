"""What became of drafts, and what is expected of the next ones."""

import pytest
from deepinfer_core.speculative.acceptance import LAG, Acceptance


def test_what_became_of_drafts_says_what_to_expect():
    acceptance = Acceptance()
    unknown = acceptance.share
    for _ in range(20):
        acceptance.learn(4, 0)
    bad = acceptance.share
    assert bad < 0.25 < unknown
    assert acceptance.survivals(2) == [bad, bad**2]
    for _ in range(100):
        acceptance.relax()
    assert bad < acceptance.share < unknown
    for _ in range(20):
        acceptance.learn(4, 4)
    assert acceptance.share > 0.9


def test_a_drafter_that_says_how_far_to_trust_it_is_believed():
    acceptance = Acceptance()
    acceptance.confidence = [0.5, 0.5, 1.5]
    assert acceptance.survivals(3) == [0.5, 0.25, 0.25]
    assert acceptance.survivals(2) == [0.5, 0.25]
    # Of a draft that is not made yet it has said nothing.
    assert acceptance.survivals(1, is_made=False) == [acceptance.share]


def test_gain_counts_drafts_that_were_not_computed_too():
    acceptance = Acceptance()
    acceptance.learn(4, 3)
    assert (acceptance.gain, acceptance.size) == (3, 4)
    acceptance.relax()
    assert acceptance.gain == pytest.approx(0.9 * 3 / 1.9)
    assert acceptance.num_tries == 2


def test_totals_follow_from_what_was_expected_two_steps_ago():
    acceptance = Acceptance()
    rows = [[0.9, 0.8], [0.7], [0.6, 0.5, 0.4], [0.3, 0.2]]
    found = [acceptance.earlier(row) for row in rows]
    assert found[:LAG] == [[1.0, 1.0], [1.0]]  # nothing is known: all may be tried
    assert found[2] == [0.9, 0.8, 0.8]  # as many as now
    assert found[3] == [0.7, 0.7]
