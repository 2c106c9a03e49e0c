"""What is encoded how, and what has to be known to read the answer."""

import pytest
from deepinfer_core.errors import RequestError

MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def test_a_chat_answer_is_a_text_of_its_own_and_a_continuation_is_not(encoder):
    assert encoder.prompt("abc").continues_text
    assert not encoder.chat(MESSAGES).continues_text
    assert encoder.chat(MESSAGES, continue_final_message=True).continues_text


def test_the_template_is_not_given_a_second_begin_of_sequence(encoder):
    encoded = encoder.chat(MESSAGES)
    decoded = encoder.tokenizer.decode(encoded.token_ids, skip_special_tokens=False)
    assert decoded == encoded.text


def test_a_conversation_is_told_from_a_prompt(encoder):
    assert encoder.either(MESSAGES).text.startswith("<|im_start|>user")
    assert encoder.either("abc").text == "abc"
    assert encoder.either([5, 6]).token_ids == [5, 6]
    with pytest.raises(RequestError, match="needs messages"):
        encoder.either("abc", add_generation_prompt=False)


@pytest.mark.parametrize("kwargs", [{"chat_template_kwargs": 5}, {"tools": "x"}, {"tools": [1]}])
def test_bad_chat_options_are_request_errors(encoder, kwargs):
    with pytest.raises(RequestError):
        encoder.chat(MESSAGES, **kwargs)
