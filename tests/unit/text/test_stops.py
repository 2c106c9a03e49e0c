"""Where an output ends at a stop string: one point for text, ids and logprobs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from deepinfer_core.text.stops import OutputText, StopChecker
from deepinfer_core.text.tokenizer import Tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

fixtures_are_shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
ab_text = st.text(alphabet="abc", max_size=30)
ab_stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4)


def first_stop(text: str, stops: list[str]) -> tuple[int, int] | None:
    """Start and end of the match that ends first, the longest of several; the obvious way."""
    for end in range(len(text) + 1):
        for start in range(end):
            if text[start:end] in stops:
                return start, end
    return None


@given(text=ab_text, stops=ab_stops, cuts=st.lists(st.integers(0, 30)), include=st.booleans())
def test_the_cut_does_not_depend_on_the_pieces(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    checker = StopChecker(stops, include_stop_str_in_output=include)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    emitted, matched = "", None
    for start, end in pairwise(bounds):
        piece, matched = checker.feed(text[start:end])
        emitted += piece
        if matched is not None:
            break
    expected = first_stop(text, stops)
    if expected is None:
        assert (emitted + checker.finish(), matched) == (text, None)
    else:
        begin, end = expected
        assert matched == text[begin:end]
        assert emitted == text[: end if include else begin]


@given(text=ab_text, stops=ab_stops)
def test_no_text_is_held_without_need(text: str, stops: list[str]) -> None:
    """Held back is exactly the longest end that some stop string begins with."""
    checker = StopChecker(stops)
    emitted, matched = checker.feed(text)
    if matched is None:
        prefixes = {stop[:k] for stop in stops for k in range(len(stop))}
        held = next(text[k:] for k in range(len(text) + 1) if text[k:] in prefixes)
        assert emitted + held == text


def test_the_match_that_is_complete_first_wins() -> None:
    assert StopChecker(["abcd", "bc"]).feed("xabcd") == ("xa", "bc")
    assert StopChecker(["bc", "abc"]).feed("xabcd") == ("x", "abc")


def test_a_piece_that_is_not_armed_does_not_stop_but_may_begin_a_stop() -> None:
    checker = StopChecker(["ab"])
    assert checker.feed("aba", armed=False) == ("ab", None)
    assert checker.feed("b") == ("", "ab")


def test_a_text_full_of_beginnings_stays_cheap() -> None:
    """A long stop string of one letter is the worst case for holding back."""
    checker = StopChecker(["a" * 1000 + "b"])
    total = sum(len(checker.feed("a")[0]) for _ in range(5000)) + len(checker.finish())
    assert total == 5000


def run(
    tokenizer: Tokenizer, ids: list[int], sizes: list[int], **options: object
) -> tuple[str, int | None, str | None]:
    """Joined text, ids kept, and the stop string, for ids that come in pieces."""
    output = OutputText(tokenizer, **options)  # type: ignore[arg-type]
    text, start, delta = "", 0, None
    for size in [*sizes, *[1] * len(ids)]:
        delta = output.feed(ids[start : start + size])
        text += delta.text
        start += size
        if delta.matched is not None:
            break
    delta = output.finish()
    return text + delta.text, delta.num_tokens_kept, delta.matched


@fixtures_are_shared
@given(data=st.data(), min_tokens=st.integers(0, 6), include=st.booleans())
def test_the_same_ids_give_the_same_cut_however_they_come(
    any_tokenizer: Tokenizer, data: st.DataObject, min_tokens: int, include: bool
) -> None:
    text = data.draw(st.text(alphabet="the 世é😀", max_size=20))
    ids = any_tokenizer.encode(text, add_special_tokens=False)
    noise = st.integers(0, any_tokenizer.vocab_size - 1)
    ids = ids + data.draw(st.lists(noise, max_size=4)) + ids
    stops = data.draw(
        st.lists(st.text(alphabet="the 世é😀", min_size=1, max_size=4), min_size=1, max_size=3)
    )
    sizes = data.draw(st.lists(st.integers(0, 7), max_size=6))
    options = {
        "stop": stops,
        "min_tokens": min_tokens,
        "include_stop_str_in_output": include,
    }
    one_by_one = run(any_tokenizer, ids, [], **options)
    assert run(any_tokenizer, ids, sizes, **options) == one_by_one
    assert run(any_tokenizer, ids, [len(ids)], **options) == one_by_one


@fixtures_are_shared
@given(text=st.text(alphabet="the fox", max_size=30), stops=ab_stops, include=st.booleans())
def test_kept_ids_are_the_fewest_whose_text_holds_the_stop(
    byte_level: Tokenizer, text: str, stops: list[str], include: bool
) -> None:
    """Tokens and logprobs past a stop string were returned elsewhere."""
    stops = [stop.replace("a", "e").replace("b", " ").replace("c", "th") for stop in stops]
    ids = byte_level.encode(text)
    joined, kept, matched = run(byte_level, ids, [], stop=stops, include_stop_str_in_output=include)
    expected = first_stop(text, stops)
    if expected is None:
        assert (joined, kept, matched) == (text, None, None)
        return
    start, end = expected
    assert (joined, matched) == (text[: end if include else start], text[start:end])
    assert kept is not None
    assert len(byte_level.decode(ids[:kept])) >= end > len(byte_level.decode(ids[: kept - 1]))


def test_a_stop_early_in_a_batch_of_tokens_is_found(byte_level: Tokenizer) -> None:
    """With drafts a step brings several tokens, and only the last was looked at elsewhere."""
    ids = [byte_level.token_to_id(letter) or 0 for letter in "thexfox"]
    delta = OutputText(byte_level, stop=["x"]).feed(ids)
    assert (delta.text, delta.num_tokens_kept, delta.matched) == ("the", 4, "x")


def test_a_stop_string_before_the_stop_token_wins(byte_level: Tokenizer) -> None:
    """The earliest event ends an output: here the stop string, though a later id ended it too."""
    ids = [*[byte_level.token_to_id(letter) or 0 for letter in "thexf"], 1]
    delta = OutputText(byte_level, stop=["x"]).feed(ids, ends_with_stop_token=True)
    assert (delta.text, delta.num_tokens_kept, delta.matched) == ("the", 4, "x")


def test_a_stop_token_is_text_only_where_asked_for(byte_level: Tokenizer) -> None:
    letters = [byte_level.token_to_id(letter) or 0 for letter in "fox"]
    for include, text in ((False, "fo"), (True, "fox")):
        for stop in ((), ("z",)):
            output = OutputText(byte_level, stop=stop, include_stop_str_in_output=include)
            delta = output.feed(letters, ends_with_stop_token=True)
            assert delta.text + output.finish().text == text


def test_a_hidden_stop_token_completes_no_stop_string(byte_level: Tokenizer) -> None:
    letters = [byte_level.token_to_id(letter) or 0 for letter in "fox"]
    output = OutputText(byte_level, stop=["ox"])
    assert output.feed(letters, ends_with_stop_token=True).matched is None
    assert output.finish().text == "o"


def test_nothing_comes_after_the_cut(byte_level: Tokenizer) -> None:
    """An overlapped loop may bring one more step of ids; they belong to nobody."""
    output = OutputText(byte_level, stop=["x"])
    ids = [byte_level.token_to_id(letter) or 0 for letter in "ax"]
    cut = output.feed(ids)
    for later in (output.feed(ids), output.finish()):
        assert (later.text, later.num_tokens_kept, later.matched) == ("", 2, "x")
    assert cut.num_tokens_kept == 2


def test_min_tokens_counts_the_token_that_completes_the_match(byte_level: Tokenizer) -> None:
    ids = [byte_level.token_to_id(letter) or 0 for letter in "xaxa"]
    for min_tokens, kept in ((0, 1), (1, 1), (2, 3), (3, 3), (4, None)):
        output = OutputText(byte_level, stop=["x"], min_tokens=min_tokens)
        assert output.feed(ids).num_tokens_kept == kept


def test_a_stop_string_of_characters_in_several_tokens(real: Tokenizer) -> None:
    ids = real.encode("Hello 😀 world")
    output = OutputText(real, stop=["😀"])
    deltas = [output.feed([token_id]) for token_id in ids]
    assert "".join(delta.text for delta in deltas) == "Hello "
    kept = next(d.num_tokens_kept for d in deltas if d.matched)
    assert real.decode(ids[:kept]) == "Hello 😀"


def test_text_held_for_a_stop_comes_at_the_end(byte_level: Tokenizer) -> None:
    output = OutputText(byte_level, stop=["foxes"])
    delta = output.feed(byte_level.encode("a fox"))
    assert (delta.text, output.finish().text) == ("a ", "fox")


@pytest.mark.parametrize("stop", ["\ufffd", "é\ufffd"])
def test_a_stop_that_only_the_end_completes(byte_level: Tokenizer, stop: str) -> None:
    """Half a character at the end is U+FFFD, and only `finish` can know that."""
    by_byte = {byte_level.token_bytes(i): i for i in range(byte_level.vocab_size)}
    ids = [by_byte[bytes([byte])] for byte in "é😀".encode()[:4]]
    output = OutputText(byte_level, stop=[stop])
    assert output.feed(ids).matched is None
    delta = output.finish()
    assert (delta.num_tokens_kept, delta.matched) == (4, stop)
