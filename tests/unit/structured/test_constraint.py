"""What one request may draw: thinking, its budget, the grammar behind it, and drafts."""

import numpy as np
import pytest
from deepinfer_core.errors import GrammarError
from deepinfer_core.structured.constraint import Constraint, Markers

from .conftest import BACKENDS

START, END, EOS = 200, 201, 202
MARKERS = Markers(START, END)
EVERYTHING = list(range(256))


def constrain(grammar=None, **options):
    matcher = None
    if grammar is not None:
        matcher = BACKENDS["xgrammar"].compile("ebnf", f"root ::= {grammar}").matcher()
    return Constraint(matcher, end_ids={EOS}, markers=MARKERS, **options)


def look(constraint, drafts=()):
    rows = [np.zeros(8, dtype=np.int32) for _ in range(len(drafts) + 1)]
    constraint.fill(rows, drafts)
    bits = [np.unpackbits(row.view(np.uint8), bitorder="little") for row in rows]
    return [np.flatnonzero(row).tolist() for row in bits]


def ids(text):
    return sorted(map(ord, text))


def test_an_answer_follows_its_grammar_to_the_end():
    constraint = constrain('"a" ("b" | "c")?')
    assert look(constraint) == [ids("a")]
    assert not constraint.advance(ord("a"))
    assert look(constraint) == [[*ids("bc"), EOS]]
    assert constraint.advance(ord("b"))  # nothing can follow
    assert look(constraint) == [[EOS]]


def test_a_grammar_begins_where_thinking_ends():
    constraint = constrain('"a"+', start="open")
    assert look(constraint) == [[i for i in EVERYTHING if i != EOS]]
    for token in (5, ord("a"), 7):
        assert not constraint.advance(token)
    assert not constraint.advance(END)
    assert look(constraint) == [ids("a")]


def test_thinking_may_end_the_answer_where_no_form_is_wanted():
    assert look(constrain(start="open", budget=3)) == [EVERYTHING]


def test_a_budget_ends_thinking_and_counts_kept_tokens_only():
    constraint = constrain('"a"', start="open", budget=2)
    constraint.advance(5)
    # The second token is the last of the budget, so behind it only the end can be drawn.
    assert look(constraint, [6, END, ord("a")])[1:] == [[END], ids("a"), [EOS]]
    assert look(constraint)[0] != [END]  # drafts are looked at and taken back
    constraint.advance(6)
    assert look(constraint) == [[END]]
    constraint.advance(END)
    assert look(constraint) == [ids("a")]


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_thinking_has_at_most_the_tokens_of_its_budget(budget):
    constraint = constrain(start="open", budget=budget)
    count = 0
    while look(constraint)[0] != [END]:
        constraint.advance(9)
        count += 1
    assert count == budget
    constraint.advance(END)
    assert not constraint.is_active
    assert look(constraint) == [EVERYTHING]


def test_the_first_token_says_whether_a_model_thinks():
    thinks, answers = (constrain('"a"', start="undecided") for _ in range(2))
    assert look(thinks) == [[*ids("a"), START]]
    thinks.advance(START)
    assert len(look(thinks)[0]) == 255
    answers.advance(ord("a"))
    assert look(answers) == [[EOS]]


def test_drafts_are_masked_at_each_position_and_taken_back():
    constraint = constrain('"a" "b" "c" "d"?')
    for _ in range(3):
        rows = look(constraint, [ord("a"), ord("b"), ord("c"), EOS])
        assert rows == [ids("a"), ids("b"), ids("c"), [ord("d"), EOS], EVERYTHING]
    constraint.advance(ord("a"))
    assert look(constraint, [ord("b")]) == [ids("b"), ids("c")]


@pytest.mark.parametrize("draft", [ord("x"), EOS, 255, START])
def test_a_draft_that_is_not_allowed_is_rejected_and_costs_nothing_else(draft):
    """A draft with a special token killed whole requests."""
    constraint = constrain('"a" "b"')
    rows = look(constraint, [ord("a"), draft, ord("b")])
    assert rows == [ids("a"), ids("b"), EVERYTHING, EVERYTHING]
    assert constraint.error is None
    constraint.advance(ord("a"))
    assert look(constraint) == [ids("b")]


def test_a_finished_matcher_is_asked_again_and_allows_the_end_only():
    """Asking a finished matcher for a mask ended 1 to 5 % of runs."""
    constraint = constrain('"a"')
    assert constraint.advance(ord("a")) in (True, False)
    for drafts in ([], [EOS], [EOS, EOS], [5]):
        assert look(constraint, drafts)[0] == [EOS]


def test_what_does_not_belong_is_never_kept():
    constraint = constrain('"a"')
    look(constraint)
    with pytest.raises(GrammarError, match="token 98 was drawn and does not belong"):
        constraint.advance(ord("b"))


class Broken:
    """Raises from the given call on."""

    can_end = False

    def __init__(self, calls):
        self.calls = calls

    def _call(self):
        self.calls -= 1
        if self.calls < 0:
            raise OSError("a bug")

    def accept(self, token_id):
        self._call()
        return True

    def rollback(self, num_tokens):
        self._call()

    def fill(self, row):
        self._call()
        row.fill(-1)


@pytest.mark.parametrize("calls", range(4))
def test_a_backend_that_raises_ends_its_request_with_its_words(calls):
    constraint = Constraint(Broken(calls), end_ids={EOS})
    with pytest.raises(GrammarError, match="OSError: a bug"):
        for _ in range(5):
            look(constraint, [5])
            if constraint.error is not None:
                raise constraint.error
            constraint.advance(5)


def test_a_grammar_that_allows_nothing_says_so():
    class Never(Broken):
        def fill(self, row):
            row.fill(0)

    constraint = Constraint(Never(100), end_ids={EOS})
    assert look(constraint) == [EVERYTHING]
    assert "allows no token of this vocabulary here" in str(constraint.error)
