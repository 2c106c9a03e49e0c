"""What follows is guessed from what followed: both guessers against a search of the whole text."""

import random

import pytest
from deepinfer_core.speculative.ngram import LENGTHS, MAX_INDEXED, Ngram, NgramGuesser
from deepinfer_core.speculative.suffix import MIN_MATCH, Suffix, SuffixGuesser


def repeated_from(ids, start, count):
    period = len(ids) - start
    return [ids[start + i % period] for i in range(count)]


def find_ngram(ids, count):
    """The latest earlier occurrence of the longest n-gram at the end."""
    for length in LENGTHS:
        for end in range(len(ids) - 1, length - 1, -1):
            if ids[end - length : end] == ids[-length:]:
                return repeated_from(ids, end, count)
    return []


def find_suffix(ids, count):
    """The first occurrence of the longest end of the text that occurs before."""
    for length in range(len(ids) - 1, MIN_MATCH - 1, -1):
        for end in range(length, len(ids)):
            if ids[end - length : end] == ids[-length:]:
                return repeated_from(ids, end, min(count, length))
    return []


@pytest.mark.parametrize(
    ("make", "find"), [(NgramGuesser, find_ngram), (SuffixGuesser, find_suffix)]
)
def test_guesses_are_those_of_a_search(make, find):
    rng = random.Random(3)
    num_found = 0
    for _ in range(60):
        guesser, ids = make(), []
        for _ in range(rng.randint(1, 12)):
            new = [rng.randrange(3) for _ in range(rng.randint(1, 5))]
            if rng.random() < 0.3 and ids:
                new = ids[: rng.randint(1, len(ids))]
            guesser.extend(new)
            ids += new
            found = find(ids, 6)
            assert list(guesser.propose(6)) == found
            num_found += bool(found)
    assert num_found > 100


@pytest.mark.parametrize("proposer", [Ngram(), Suffix()])
def test_nothing_to_go_by_is_no_guess(proposer):
    guesser = proposer.start()
    assert list(guesser.propose(4)) == []
    guesser.extend([1, 2, 3])
    assert list(guesser.propose(4)) == []


@pytest.mark.parametrize("proposer", [Ngram(), Suffix()])
def test_a_period_goes_on(proposer):
    guesser = proposer.start()
    guesser.extend([9, 1, 2, 1, 2, 1, 2])
    assert list(guesser.propose(4)) == [1, 2, 1, 2]


@pytest.mark.parametrize("proposer", [Ngram(), Suffix()])
def test_of_a_long_prompt_the_end_counts(proposer):
    guesser = proposer.start()
    guesser.extend([1, 2, 3, 4, *range(100, 100 + MAX_INDEXED), 5, 6, 7, 8])
    guesser.extend([1, 2, 3])
    assert list(guesser.propose(1)) == []
    guesser.extend([5, 6, 7])
    assert list(guesser.propose(1)) == [8]
