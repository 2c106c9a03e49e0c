"""The joined pieces of a stream are the decoded whole, and no piece is half a character."""

from __future__ import annotations

import copy
from functools import cache

import pytest
from deepinfer_core.text.decoding import Decoding
from deepinfer_core.text.detokenizer import IncrementalDetokenizer
from deepinfer_core.text.tokenizer import Tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

fixtures_are_shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def stream(
    tokenizer: Tokenizer, ids: list[int], sizes: list[int], **options: bool
) -> tuple[list[str], str]:
    """Feed `ids` in pieces of the given sizes, then one by one; texts and what `finish` gave."""
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    texts, start = [], 0
    for size in [*sizes, *[1] * len(ids)]:
        texts.append(detokenizer.feed(ids[start : start + size]))
        start += size
    return texts, detokenizer.finish()


@cache
def interesting_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any ids, with parts of characters and special tokens far more often than by chance."""
    everything = range(tokenizer.vocab_size)
    parts = [i for i in everything if not _is_text(tokenizer.token_bytes(i))]
    special = sorted(tokenizer.special_token_ids)
    whole = tokenizer.encode("😀世é\n \u200d\ufffd", add_special_tokens=False)
    one = st.one_of(
        st.sampled_from(parts),
        st.sampled_from(special),
        st.sampled_from(whole),
        st.integers(0, tokenizer.vocab_size + 2),
    )
    return st.lists(one, max_size=24)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@fixtures_are_shared
@given(data=st.data(), skip=st.booleans())
def test_joined_texts_are_the_decoded_whole(
    any_tokenizer: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    ids = data.draw(interesting_ids(any_tokenizer))
    sizes = data.draw(st.lists(st.integers(0, 5), max_size=8))
    texts, rest = stream(any_tokenizer, ids, sizes, skip_special_tokens=skip)
    assert "".join([*texts, rest]) == any_tokenizer.decode(ids, skip_special_tokens=skip)


@fixtures_are_shared
@given(text=st.text(alphabet="the 世é😀👩‍\n", max_size=20), sizes=st.lists(st.integers(1, 3)))
def test_valid_text_never_shows_half_a_character(
    any_tokenizer: Tokenizer, text: str, sizes: list[int]
) -> None:
    texts, rest = stream(any_tokenizer, any_tokenizer.encode(text), sizes)
    assert "\ufffd" not in "".join([*texts, rest])


@pytest.mark.parametrize("character", ["é", "世", "😀"])
def test_a_character_comes_with_its_last_token(byte_level: Tokenizer, character: str) -> None:
    """Byte-level text is never held longer than a character needs."""
    ids = [byte_level.token_to_id(c) for c in _spelling(byte_level, character)]
    assert len(ids) == len(character.encode())
    texts, rest = stream(byte_level, ids, [])
    assert texts == [*[""] * (len(ids) - 1), character]
    assert rest == ""


def _spelling(tokenizer: Tokenizer, character: str) -> list[str]:
    by_bytes = {
        tokenizer.token_bytes(i): tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size)
    }
    return [by_bytes[bytes([byte])] or "" for byte in character.encode()]


def test_half_a_character_at_the_end_is_shown_at_finish_only(byte_level: Tokenizer) -> None:
    ids = [byte_level.token_to_id(c) or 0 for c in _spelling(byte_level, "😀")][:3]
    texts, rest = stream(byte_level, ids, [])
    assert "".join(texts) == ""
    assert rest == "\ufffd" == byte_level.decode(ids)


def test_a_special_token_may_stand_within_a_character(byte_level: Tokenizer) -> None:
    ids = [byte_level.token_to_id(c) or 0 for c in _spelling(byte_level, "é")]
    end = byte_level.eos_token_id or 0
    texts, rest = stream(byte_level, [ids[0], end, ids[1]], [])
    assert ("".join(texts), rest) == ("é", "")


def test_the_first_space_of_pieces_is_dropped_once(pieces: Tokenizer) -> None:
    ids = pieces.encode("the the", add_special_tokens=False)
    texts, _ = stream(pieces, ids, [])
    assert "".join(texts) == "the the"


@fixtures_are_shared
@given(prompt=st.text(alphabet="the quick", min_size=1), text=st.text(alphabet="the quick"))
def test_text_that_goes_on_keeps_its_first_space(pieces: Tokenizer, prompt: str, text: str) -> None:
    prompt_ids = pieces.encode(prompt, add_special_tokens=False)
    ids = pieces.encode(text, add_special_tokens=False)
    texts, rest = stream(pieces, ids, [], continues_text=True)
    both = pieces.decode([*prompt_ids, *ids])
    assert pieces.decode(prompt_ids) + "".join([*texts, rest]) == both


def test_an_ill_formed_run_of_bytes_is_one_mark_for_each(pieces: Tokenizer) -> None:
    """The library decides over a whole run of byte tokens, so the stream has to wait for it."""
    first, *_ = [pieces.token_to_id(f"<0x{byte:02X}>") or 0 for byte in "😀".encode()]
    good = [pieces.token_to_id(f"<0x{byte:02X}>") or 0 for byte in "é".encode()]
    word = pieces.token_to_id("▁the") or 0
    texts, rest = stream(pieces, [*good, first, word], [])
    assert "".join([*texts, rest]) == "\ufffd\ufffd\ufffd the"
    assert texts[:3] == ["", "", ""]


def test_a_decoder_that_cannot_be_followed_is_still_streamed(other: Tokenizer) -> None:
    assert other.decoding.kind == "other"
    ids = [1, 2, 5, 4, 3, 1]
    texts, rest = stream(other, ids, [2])
    assert "".join([*texts, rest]) == other.decode(ids) == "ab bc  a"
    assert texts[0] == "ab"


@fixtures_are_shared
@given(data=st.data(), skip=st.booleans())
def test_a_window_gives_what_following_gives(
    byte_level: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    windowed = copy.copy(byte_level)
    windowed.decoding = Decoding("other")
    ids = data.draw(interesting_ids(byte_level))
    sizes = data.draw(st.lists(st.integers(0, 5), max_size=8))
    texts, rest = stream(windowed, ids, sizes, skip_special_tokens=skip)
    assert "".join([*texts, rest]) == byte_level.decode(ids, skip_special_tokens=skip)


def test_a_long_stream_holds_no_history(real: Tokenizer) -> None:
    """Cost per token must not grow: nothing but the unfinished character is kept."""
    detokenizer = IncrementalDetokenizer(real)
    ids = real.encode("The quick brown fox. 😀 " * 2000)
    assert "".join(detokenizer.feed([i]) for i in ids) == real.decode(ids)
    assert detokenizer.finish() == ""
