"""What is encoded how, and what has to be known to read the answer."""

import pytest
from deepinfer_core.errors import RequestError
from deepinfer_core.faces.chat import ChatEncoder
from deepinfer_core.faces.encoder import Encoder
from deepinfer_core.structured.spec import StructuredOutput
from deepinfer_core.testing.fake_recipe import FakeRecipe

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


@pytest.fixture
def recipe_encoder(engine):
    recipe = FakeRecipe("X", engine.tokenizer.to_json())
    return Encoder(engine.tokenizer, ChatEncoder(engine.tokenizer, template=None, recipe=recipe))


@pytest.fixture(params=["template", "recipe"])
def any_encoder(request, encoder, recipe_encoder):
    return encoder if request.param == "template" else recipe_encoder


@pytest.mark.parametrize(
    "name",
    ["tools", "add_generation_prompt", "continue_final_message", "template_name", "messages"],
)
def test_reserved_names_are_no_template_variables(any_encoder, name):
    """They were a TypeError, or overwrote the messages that the recipe was given."""
    with pytest.raises(RequestError, match=f"cannot hold {name}") as caught:
        any_encoder.chat(MESSAGES, chat_template_kwargs={name: None})
    assert caught.value.field == f"chat_template_kwargs.{name}"
    with pytest.raises(RequestError, match="names in chat_template_kwargs are text, not int"):
        any_encoder.chat(MESSAGES, chat_template_kwargs={5: 1})


def test_what_a_recipe_asks_for_and_the_engine_lacks_is_refused_with_a_remedy(recipe_encoder):
    chat = recipe_encoder.chat
    with pytest.raises(
        RequestError, match=r"response_format: the form .* cannot be held"
    ) as caught:
        chat(MESSAGES, chat_template_kwargs={"response_format": {"colour": "red"}})
    assert caught.value.field == "response_format"
    with pytest.raises(RequestError, match=r"1 were given, allowed are 0.*send text only"):
        chat(MESSAGES, chat_template_kwargs={"images": [1]})
    with pytest.raises(RequestError, match="leave add_generation_prompt out"):
        chat(MESSAGES, add_generation_prompt=False)
    assert chat(MESSAGES, add_generation_prompt=False, continue_final_message=True).token_ids
    with pytest.raises(RequestError, match="the recipe refused: no"):
        chat(MESSAGES, chat_template_kwargs={"refuse": "no"})


def test_a_form_that_a_recipe_asks_for_comes_with_the_prompt(recipe_encoder, encoder):
    form = {"response_format": {"json_object": True}}
    encoded = recipe_encoder.chat(MESSAGES, chat_template_kwargs=form)
    assert encoded.structured == StructuredOutput(json_object=True)
    assert encoded.thinking == "closed"
    assert recipe_encoder.chat(MESSAGES).structured is None
    # A template says what it says of thinking at the end of its text, if at all.
    assert encoder.chat(MESSAGES).thinking == "undecided"
    assert encoder.chat(MESSAGES, continue_final_message=True).thinking is None
    assert encoder.prompt("x").thinking is None


@pytest.mark.parametrize("kwargs", [{"chat_template_kwargs": 5}, {"tools": "x"}, {"tools": [1]}])
def test_bad_chat_options_are_request_errors(encoder, kwargs):
    with pytest.raises(RequestError):
        encoder.chat(MESSAGES, **kwargs)
