"""The border to a proposer: whatever it does, what comes out is a draft or nothing."""

import logging

import pytest
from deepinfer_core.speculative.drafting import Drafting


class Says:
    """A proposer and guesser that answers as it was told."""

    def __init__(self, answer):
        self.answer, self.ids = answer, []

    def start(self):
        return self

    def extend(self, token_ids):
        self.ids += token_ids

    def propose(self, num_tokens):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "draft"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 2, 3, 4, 5], [1, 2, 3]),
        ([1, 10, 2], [1]),
        ([-1, 2], []),
        ([], []),
        ((7,), [7]),
    ],
)
def test_only_ids_of_the_vocabulary_and_only_so_many(answer, draft):
    assert list(Drafting(Says(answer), vocab_size=10).propose([1], [2], 3)) == draft


@pytest.mark.parametrize("answer", [RuntimeError("no"), None, ["a"], 3, [None]])
def test_what_fails_is_not_asked_again(answer, caplog):
    says = Says(answer)
    drafting = Drafting(says, vocab_size=10)
    with caplog.at_level(logging.WARNING):
        assert list(drafting.propose([1], [2], 3)) == []
    assert "goes on without drafts" in caplog.text
    says.answer = [1]
    assert list(drafting.propose([1], [2, 3], 3)) == []


def test_a_guesser_that_cannot_be_made_is_none(caplog):
    class Refuses:
        def start(self):
            raise ValueError("not today")

    assert list(Drafting(Refuses(), vocab_size=10).propose([1], [], 3)) == []
    assert "not today" in caplog.text


def test_a_guesser_sees_each_token_once_and_in_order():
    says = Says([])
    drafting = Drafting(says, vocab_size=10)
    for outputs in ([5], [5], [5, 6, 7], [5, 6, 7, 8]):
        drafting.propose([1, 2], outputs, 3)
        assert says.ids == [1, 2, *outputs]
