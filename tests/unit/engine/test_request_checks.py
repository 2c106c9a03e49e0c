"""A request that cannot be served is refused before it is queued, with both numbers."""

from dataclasses import replace

import pytest
from deepinfer_core.errors import PromptTooLongError, RequestError, UnsupportedSamplingError
from deepinfer_core.request_checks import RequestLimits, check_priority, check_request
from deepinfer_core.sampling_params import SamplingParams

LIMITS = RequestLimits(
    vocab_size=100,
    max_model_len=32,
    max_position=48,
    max_pool_tokens=64,
    eos_token_ids=(1, 2),
    logits_stages=frozenset({"known"}),
)


def check(prompt=(5, 6), limits=LIMITS, **params):
    def encode(text):
        return [10 + ord(c) % 50 for c in text]

    return check_request(prompt, SamplingParams(**params), limits, encode)


def test_lengths_are_cut_to_the_tightest_limit():
    assert check(max_tokens=5).max_total_tokens == 7
    assert check(max_tokens=None).max_total_tokens == 32
    assert check(max_tokens=500).max_total_tokens == 32
    small_pool = replace(LIMITS, max_pool_tokens=20)
    assert check(limits=small_pool, max_tokens=None).max_total_tokens == 20


def test_stop_ids_are_the_models_and_the_requests():
    assert check(stop_token_ids=(7,)).stop_token_ids == {1, 2, 7}
    assert check(stop_token_ids=(7,), ignore_eos=True).stop_token_ids == {7}


def test_bad_words_are_looked_for_at_the_start_and_after_a_space():
    (plain, spaced) = check(bad_words=("ab",)).bad_token_ids
    assert len(spaced) == len(plain) + 1
    assert spaced[1:] == plain


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ((), RequestError, "empty"),
        ((5, 100), RequestError, "token 1 is 100, allowed are 0 to 99"),
        ((-1,), RequestError, "token 0 is -1"),
        ((5, "x"), RequestError, "whole numbers"),
        ((5, 1.5), RequestError, "whole numbers"),
        (
            (5,) * 32,
            PromptTooLongError,
            r"32 tokens, at most 31 .*raise model\.max_model_len \(the model takes 48\)",
        ),
    ],
)
def test_bad_prompts(prompt, error, words):
    with pytest.raises(error, match=words):
        check(prompt)


def test_a_limit_that_cannot_be_raised_is_not_advised():
    """It said to raise max_model_len, which then was refused as longer than the model allows."""
    with pytest.raises(PromptTooLongError, match="made for no more") as raised:
        check((5,) * 48, replace(LIMITS, max_model_len=48))
    assert "raise" not in str(raised.value)


def test_a_prompt_longer_than_the_pool_names_the_pools_knob():
    limits = replace(LIMITS, max_pool_tokens=8)
    with pytest.raises(PromptTooLongError, match=r"8 tokens, at most 7 .*cache\.num_blocks"):
        check((5,) * 8, limits)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"logit_bias": {100: 1.0}}, "logit_bias holds 100, allowed are 0 to 99"),
        ({"allowed_token_ids": (3, 400)}, "allowed_token_ids holds 400"),
        ({"stop_token_ids": (100,)}, "stop_token_ids holds 100"),
        ({"logprobs": 101}, "logprobs = 101, allowed are 0 to 100"),
        ({"prompt_logprobs": 101}, "prompt_logprobs = 101"),
        ({"logits_stages": ("absent",)}, "unknown absent; known: known"),
    ],
)
def test_bad_parameters(params, words):
    with pytest.raises(UnsupportedSamplingError, match=words):
        check(**params)


def test_a_priority_that_cannot_be_compared_is_refused():
    assert check_priority(-3) == -3
    for priority in ("high", 1.5, None, [1]):
        with pytest.raises(RequestError, match=r"priority = .*whole number") as caught:
            check_priority(priority)
        assert caught.value.field == "priority"


def test_prompt_logprobs_do_not_go_with_bounded_replay():
    replaying = replace(LIMITS, bounded_replay=True)
    assert check(limits=replaying, logprobs=3).prompt_token_ids == [5, 6]
    with pytest.raises(UnsupportedSamplingError, match="prompt_logprobs = 0 is not") as caught:
        check(limits=replaying, prompt_logprobs=0)
    assert caught.value.field == "prompt_logprobs"
