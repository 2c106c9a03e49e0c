"""Ids to text: what waits, what is certain, and whose log probabilities are reported."""

import deepinfer_recipe as api
import pytest
from deepinfer_recipe.parsing import Origin
from deepinfer_recipe.streaming.decoding import TokenDecoder
from deepinfer_recipe.streaming.logprobs import logprob_entry


@pytest.fixture(scope="module")
def byte_ids(tokenizer):
    """Return the ids that spell bytes one at a time."""
    table = {tokenizer.token_bytes(token_id): token_id for token_id in range(1000)}
    return lambda raw: [table[bytes([byte])] for byte in raw]


def shown(pieces):
    return [(piece.text, piece.origin, piece.num_tokens) for piece in pieces]


def test_half_a_character_waits_with_its_tokens(tokenizer, byte_ids):
    decoder, ids = TokenDecoder(tokenizer), byte_ids("a日b".encode())
    assert shown(decoder.feed(ids[:2], None)) == []
    assert shown(decoder.feed(ids[2:3], None)) == []
    assert shown(decoder.feed(ids[3:], None)) == [("a日b", Origin.PLAIN, 5)]


def test_half_a_character_before_a_special_token_is_a_replacement(tokenizer, byte_ids):
    decoder, ids = TokenDecoder(tokenizer), byte_ids("日".encode())
    pieces = decoder.feed([*ids[:2], 128822], None)
    assert shown(pieces) == [("\ufffd", Origin.PLAIN, 2), ("</think>", Origin.SPECIAL, 1)]


def test_a_replacement_at_the_end_waits_for_what_follows(tokenizer, byte_ids):
    """The bytes after it may still belong to it; the oracle decides when more text is there."""
    decoder = TokenDecoder(tokenizer)
    assert shown(decoder.feed(byte_ids(b"\xff"), None)) == []
    assert shown(decoder.feed(byte_ids(b"a"), None)) == [("\ufffda", Origin.PLAIN, 2)]


def test_unknown_ids_stand_for_nothing(tokenizer):
    decoder = TokenDecoder(tokenizer)
    for token_id in (999_999, 2**32 - 1, 2**32, -1):
        assert tokenizer.token_bytes(token_id) is None
    assert shown(decoder.feed([999_999, *tokenizer.encode("a")], None)) == [("a", Origin.PLAIN, 2)]


def test_log_probabilities_are_of_all_tokens_of_a_piece_or_of_none(tokenizer, byte_ids):
    decoder, ids = TokenDecoder(tokenizer), byte_ids("日".encode())
    assert decoder.feed(ids[:2], None) == []
    (piece,) = decoder.feed(ids[2:], [{"token": "x"}])
    assert (piece.text, piece.logprobs) == ("日", None)
    (piece,) = decoder.feed(byte_ids(b"ab"), [{"token": "a"}, {"token": "b"}])
    assert piece.logprobs == [{"token": "a"}, {"token": "b"}]


def test_an_infinite_log_probability_is_null():
    assert logprob_entry(b"a", float("-inf"))["logprob"] is None
    assert logprob_entry(b"\xff", -0.1) == {"token": "\\xff", "logprob": -0.1, "bytes": [255]}


CHAT = {"model": "DeepSeek-V4-Pro", "messages": [{"role": "user", "content": "q"}]}


def processor(tokenizer=None):
    request = api.ChatCompletionRequest(CHAT).convert(api.ConversionOptions())
    generator = api.ChatCompletionRequest.chunk_generator(request, "i", "m")
    return api.StreamProcessor(generator, request.parsing_options, tokenizer)


def test_an_error_closes_the_processor(tokenizer):
    wrong = api.InferenceChunk.tokens([5], [(0.0, []), (0.0, [])])
    cases = [
        (processor(), api.InferenceChunk.tokens([5]), "token chunk received without a tokenizer"),
        (processor(tokenizer), wrong, "invalid log probabilities: 2 log probabilities for 1 token"),
    ]
    for opened, chunk, message in cases:
        with pytest.raises(RuntimeError, match=message):
            opened.push(chunk)
        with pytest.raises(RuntimeError, match="stream processor is closed"):
            opened.push(chunk)
        with pytest.raises(RuntimeError, match="stream processor is closed"):
            opened.finish()
