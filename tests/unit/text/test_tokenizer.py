"""Text to ids and back, and text that is none."""

from __future__ import annotations

import threading

import pytest
from deepinfer_core.errors import RequestError
from deepinfer_core.text.tokenizer import Tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

fixtures_are_shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@fixtures_are_shared
@given(text=st.text(max_size=40))
def test_text_survives_encode_and_decode(byte_level: Tokenizer, text: str) -> None:
    assert byte_level.decode(byte_level.encode(text), skip_special_tokens=False) == text


@fixtures_are_shared
@given(text=st.text(alphabet="the quick world,.\n世é😀\x00", max_size=40))
def test_text_survives_pieces_with_byte_fallback(pieces: Tokenizer, text: str) -> None:
    assert pieces.decode(pieces.encode(text)) == text


@fixtures_are_shared
@given(text=st.text(max_size=40))
def test_bytes_of_tokens_join_to_the_text(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text)
    assert b"".join(map(byte_level.token_bytes, ids)).decode() == text


def test_special_tokens_are_recognised_in_text_and_left_out_of_it(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<s>the</s>")
    assert ids[0] == byte_level.bos_token_id == byte_level.token_to_id("<s>")
    assert ids[-1] == byte_level.eos_token_id
    assert byte_level.decode(ids) == "the"
    assert byte_level.decode(ids, skip_special_tokens=False) == "<s>the</s>"


def test_added_tokens_that_are_not_special_stay_in_the_text(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<think>the\uff5cUser\uff5c")
    assert byte_level.decode(ids) == "<think>the\uff5cUser\uff5c"
    assert byte_level.token_to_id("<think>") not in byte_level.special_token_ids
    assert byte_level.token_bytes(ids[-1]) == "\uff5cUser\uff5c".encode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ab\ud800c", "character 2 is the lone surrogate U\\+D800"),
        (b"bytes", "must be text, not bytes"),
        (None, "must be text, not NoneType"),
    ],
)
def test_what_is_no_text_is_a_request_error(
    byte_level: Tokenizer, text: object, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        byte_level.encode(text)  # type: ignore[arg-type]


def test_one_bad_text_costs_the_batch_nothing(byte_level: Tokenizer) -> None:
    good, bad, empty = byte_level.encode_batch(["the", "\udfff", ""])
    assert good == byte_level.encode("the")
    assert isinstance(bad, RequestError)
    assert empty == byte_level.encode("")
    assert byte_level.encode_batch([]) == []


def test_a_long_text_of_one_letter_is_encoded(any_tokenizer: Tokenizer) -> None:
    text = "a" * 200_000
    assert any_tokenizer.decode(any_tokenizer.encode(text)) == text


def test_ids_outside_the_vocabulary_give_no_text(any_tokenizer: Tokenizer) -> None:
    beyond = any_tokenizer.vocab_size + 7
    ids = any_tokenizer.encode("the", add_special_tokens=False)
    assert any_tokenizer.decode([*ids, beyond]) == "the"
    assert any_tokenizer.id_to_token(beyond) is None
    assert any_tokenizer.id_to_token(-1) is None
    assert any_tokenizer.token_bytes(beyond) == b""


@pytest.mark.parametrize("bad_id", [-1, 2**32, "a", 1.5])
def test_what_is_no_id_is_a_request_error(byte_level: Tokenizer, bad_id: object) -> None:
    with pytest.raises(RequestError, match="cannot decode token ids"):
        byte_level.decode([bad_id])  # type: ignore[list-item]


def test_threads_share_one_tokenizer(byte_level: Tokenizer) -> None:
    texts = [f"the quick fox {n}" * 20 for n in range(50)]
    wanted = [byte_level.encode(text) for text in texts]
    wrong: list[str] = []

    def work() -> None:
        for text, ids in zip(texts, wanted, strict=True):
            if byte_level.encode(text) != ids or byte_level.decode(ids) != text:
                wrong.append(text)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
