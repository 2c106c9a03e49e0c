"""Rules that long comparisons with the oracle brought to light, each by its smallest case."""

import deepinfer_recipe as api
import pytest

MODEL = "DeepSeek-V4.1-Flash"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
CALL = {"type": "tool_use", "id": "1", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("assistant", "messages.1: `tool_use` ids were found without `tool_result` blocks"),
        ("user", "messages.1: all messages must have non-empty content"),
    ],
)
def test_an_open_call_is_named_before_an_empty_answer(role, message):
    messages = [{"role": "assistant", "content": [CALL]}, {"role": role, "content": []}]
    request = api.MessagesRequest({"model": MODEL, "max_tokens": 9, "messages": messages})
    with pytest.raises(api.ConversionError) as caught:
        request.convert(api.ConversionOptions())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "is_valid"),
    [
        ({"definitions": {"a": {"$ref": None}}}, True),
        ({"additionalItems": {"$ref": 3}}, True),
        ({"additionalItems": {"$ref": 3}, "items": [{}]}, False),
        ({"properties": {"a": {"$ref": None}}}, False),
    ],
)
def test_draft_4_says_nothing_of_references_that_nobody_uses(schema, is_valid):
    schema = {**schema, "type": "object", "$schema": DRAFT_4}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    user = [{"role": "user", "content": "x"}]
    body = {"model": MODEL, "messages": user, "response_format": wanted}
    request = api.ChatCompletionRequest(body)
    if is_valid:
        request.convert(api.ConversionOptions())
    else:
        with pytest.raises(api.ConversionError):
            request.convert(api.ConversionOptions())


@pytest.mark.parametrize("has_own", [False, True])
def test_a_choice_of_a_dropped_search_is_no_choice(has_own):
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    tools += [{"name": "g", "input_schema": {"type": "object"}}] * has_own
    tools += [{"type": "web_search_20250305", "name": "g"}]
    body = {
        "model": MODEL,
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
        "thinking": {"type": "disabled"},
        "tools": tools,
        "tool_choice": {"type": "tool", "name": "g"},
    }
    options = api.ConversionOptions(messages_web_search=api.WebSearchBehavior.Drop)
    conversation = api.MessagesRequest(body).convert(options).conversation
    assert conversation.tool_choice == "auto"
    assert [tool.name for tool in conversation.tools] == ["f", "g"][: 1 + has_own]
