"""Every pair of blocks in a message of every role, with and without an open call before it."""

import itertools

import pytest

BLOCKS = [
    {"type": "text", "text": "t"},
    {"type": "thinking", "thinking": "t", "signature": "s"},
    {"type": "image", "source": {"type": "url", "url": "http://h"}},
    {"type": "image", "source": {"type": "url", "url": "ftp"}},
    {"type": "document", "source": {"type": "base64", "media_type": "a/b", "data": "x"}},
    {"type": "tool_use", "id": "1", "name": "f", "input": {}},
    {"type": "tool_use", "id": "2", "name": "f", "input": {}},
    {"type": "tool_result", "tool_use_id": "1", "content": "x"},
    {"type": "tool_result", "tool_use_id": "2", "content": "x"},
    {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}},
    {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "none"}},
    {"type": "server_tool_use", "id": "9", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "9", "content": []},
]
MESSAGES = [[], *([block] for block in BLOCKS)] + [
    list(pair) for pair in itertools.product(BLOCKS, repeat=2)
]
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]


@pytest.mark.parametrize("model", ["DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash"])
@pytest.mark.parametrize("web_search", ["Drop", "Reject"])
def test_the_same_fault_of_several_is_reported(sides, convert, model, web_search):
    different = []
    for role in ("assistant", "user", "system"):
        for content in MESSAGES:
            for before, after in itertools.product((BLOCKS[0], BLOCKS[5]), ([], ["q"])):
                messages = [{"role": "assistant", "content": [before]}]
                messages += [{"role": role, "content": content}]
                messages += [{"role": "user", "content": text} for text in after]
                case = {
                    "request": "MessagesRequest",
                    "options": {"messages_web_search": web_search},
                    "context": None,
                    "body": {"model": model, "messages": messages, "tools": TOOLS},
                }
                expected, actual = (convert(side, case) for side in sides)
                if expected != actual:
                    different.append((messages, expected, actual))
    assert different == []
