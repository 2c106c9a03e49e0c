"""Limits of request fields: the last accepted value and the first refused one."""

import deepinfer_recipe as api
import pytest

SCHEMA = {"type": "object"}


def convert(**fields):
    body = {"model": "DeepSeek-V4-Pro", "messages": [{"role": "user", "content": "q"}], **fields}
    return api.ChatCompletionRequest(body).convert(api.ConversionOptions())


@pytest.mark.parametrize(
    ("field", "accepted", "refused"),
    [
        ("stop", ["x"] * 16, ["x"] * 17),
        ("seed", 2**63 - 1, 2**63),
        ("presence_penalty", 2, 2.01),
        ("frequency_penalty", -2, -2.01),
        ("top_p", 1e-6, 0),
        ("top_p", 1, 1.01),
        ("temperature", 0, -0.01),
        ("temperature", 2, 2.01),
        ("max_tokens", 1, 0),
        ("max_tokens", 393216, 393217),
        ("n", 1, 2),
    ],
)
def test_limits_are_inclusive(field, accepted, refused):
    convert(**{field: accepted})
    with pytest.raises(api.ConversionError):
        convert(**{field: refused})


def test_top_logprobs_are_at_most_twenty():
    convert(logprobs=True, top_logprobs=20)
    with pytest.raises(api.ConversionError):
        convert(logprobs=True, top_logprobs=21)


def test_the_length_of_a_name_is_checked_before_its_characters_and_counts_bytes():
    for name, fault in (("x" * 129, "too long"), ("é" * 65, "too long"), ("é", "not match")):
        tool = {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
        with pytest.raises(api.ConversionError, match=fault):
            convert(tools=[tool])


def test_messages_lower_a_limit_that_is_too_high():
    body = {
        "model": "DeepSeek-V4-Pro", "max_tokens": 393217,
        "messages": [{"role": "user", "content": "q"}],
    }  # fmt: skip
    converted = api.MessagesRequest(body).convert(api.ConversionOptions())
    assert converted.inference_options.max_tokens == 393216
