"""Messages requests with several faults: which of them is reported."""

import deepinfer_recipe as api
import pytest

CALL = {"role": "assistant", "content": [
    {"type": "tool_use", "id": "1", "name": "f", "input": {}},
]}  # fmt: skip
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "x"}
SEARCH = {"type": "server_tool_use", "id": "9", "name": "web_search", "input": {}}
THINKING = {"type": "thinking", "thinking": "t", "signature": "s"}


def failure(*messages):
    body = {"model": "DeepSeek-V4.1-Flash", "messages": list(messages)}
    with pytest.raises(api.ConversionError) as caught:
        api.MessagesRequest(body).convert(api.ConversionOptions())
    return str(caught.value)


@pytest.mark.parametrize("block", [RESULT, SEARCH], ids=["result", "search"])
def test_an_unanswered_call_goes_before_a_misplaced_block_of_the_assistant(block):
    """The block that may not stand there was named instead of the call without a result."""
    for blocks in ([block], [THINKING, block]):
        found = failure(CALL, {"role": "assistant", "content": blocks})
        assert found.startswith("messages.1: `tool_use` ids were found without `tool_result`")


@pytest.mark.parametrize("block", [RESULT, SEARCH, THINKING], ids=["result", "search", "thinking"])
def test_an_unanswered_call_goes_before_a_misplaced_block_of_the_system(block):
    found = failure(CALL, {"role": "system", "content": [block]})
    assert found.startswith("messages.1: `tool_use` ids were found without `tool_result`")


def test_a_misplaced_block_goes_before_the_call_in_front_of_it():
    """In one message the place is checked first; the call is named with the block's position."""
    own = CALL["content"]
    found = failure({"role": "assistant", "content": [*own, RESULT]})
    assert found == "messages.0: `tool_result` blocks can only be in `user` messages"
    found = failure({"role": "assistant", "content": [*own, {"type": "text", "text": "t"}]})
    assert found.startswith("messages.0.1: `tool_use` ids were found without `tool_result`")
