"""Every sampling parameter takes what it should and refuses the rest by name, value and rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from deepinfer_core.errors import RequestError, UnsupportedSamplingError
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.structured.spec import StructuredOutput

NAN, INF = float("nan"), float("inf")
NO_NUMBERS = [True, "1", None, [1], NAN, INF, -INF]
NO_WHOLES = [True, "3", 1.0, NAN, [1]]
NO_FLAGS = [1, 0, "true", None]
NO_TEXT_LISTS = [3, [3], {"a": 1}, [["a"]], [None], b"a"]
NO_ID_LISTS = [3, "12", [-1], [True], ["1"], [1.0], {1: 2}]
GOOD: dict[str, list[Any]] = {
    "temperature": [0, 0.0, 1e-6, 1, 100.0, np.float32(0.5), np.float64(2)],
    "top_k": [-1, 0, 1, 10**6, np.int64(40)],
    "top_p": [1e-9, 0.5, 1, 1.0],
    "min_p": [0, 0.0, 0.5, 1.0],
    "presence_penalty": [-2, 0.0, 2.0],
    "frequency_penalty": [-2, 0.0, 2.0],
    "repetition_penalty": [0.01, 1, 1.3, 100.0],
    "logit_bias": [None, {}, {0: 1.5, 7: -100}],
    "allowed_token_ids": [None, (0, 5)],
    "bad_words": [(), ("a", " b c"), ("\x00",)],
    "stop": [(), ("a", "\n\n"), ("😀",)],
    "stop_token_ids": [(), (0, 2)],
    "include_stop_str_in_output": [True, False],
    "min_tokens": [0, 16],
    "max_tokens": [None, 1, 10**9],
    "ignore_eos": [True, False],
    "seed": [None, 0, -(2**63), 2**64 - 1, np.uint64(2**64 - 1)],
    "n": [1, 1024],
    "logprobs": [None, 0, 20],
    "prompt_logprobs": [None, 0, 20],
    "logprobs_mode": ["raw", "processed"],
    "logits_stages": [(), ("mine",)],
    "structured": [None, StructuredOutput(regex="a+")],
    "thinking_budget": [None, 0, 10**6],
}
BAD: dict[str, list[Any]] = {
    "temperature": [*NO_NUMBERS, -0.1, 100.1, 1e-9],
    "top_k": [*NO_WHOLES, None, -2],
    "top_p": [*NO_NUMBERS, 0, 0.0, 1.1],
    "min_p": [*NO_NUMBERS, -0.1, 1.1],
    "presence_penalty": [*NO_NUMBERS, -2.1, 2.1],
    "frequency_penalty": [*NO_NUMBERS, -2.1, 2.1],
    "repetition_penalty": [*NO_NUMBERS, 0, -1, 101],
    "logit_bias": [[1], {"x": 1.0}, {-1: 1.0}, {"-1": 1.0}, {1.5: 1.0}, {1: NAN}, {1: "1"}],
    "allowed_token_ids": [*NO_ID_LISTS, []],
    "bad_words": [*NO_TEXT_LISTS, "", ["a", ""], ["\ud800"]],
    "stop": [*NO_TEXT_LISTS, "", ["a", ""], ["\udfff"]],
    "stop_token_ids": NO_ID_LISTS,
    "include_stop_str_in_output": NO_FLAGS,
    "min_tokens": [*NO_WHOLES, None, -1],
    "max_tokens": [*NO_WHOLES, 0, -1],
    "ignore_eos": NO_FLAGS,
    "seed": [*NO_WHOLES, -(2**63) - 1, 2**64],
    "n": [*NO_WHOLES, None, 0, 1025],
    "logprobs": [*NO_WHOLES, -1],
    "prompt_logprobs": [*NO_WHOLES, -1],
    "logprobs_mode": ["RAW", None, 1],
    "logits_stages": NO_TEXT_LISTS,
    "structured": [
        *(3, "json", [], {}, {"json_object": False}, {"json_schema": ""}, {"json_schema": "{"}),
        *({"json_schema": []}, {"json_schema": {"a": NAN}}, {"regex": 3}, {"choice": "a"}),
        *({"choice": []}, {"choice": [""]}, {"regex": "a", "choice": ["b"]}, {"grammar": ""}),
        *({"structural_tag": {}}, {"regex": "a", "max_whitespace": -1}, {"regex": "\ud800"}),
    ],
    "thinking_budget": [*NO_WHOLES, -1],
}


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}={str(value)[:30]!a}")
        for name, values in table.items()
        for value in values
    ]


def test_the_tables_cover_every_field() -> None:
    assert set(GOOD) == set(BAD) == set(SamplingParams.model_fields)


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_good_values_are_kept(name: str, value: Any) -> None:
    kept = getattr(SamplingParams(**{name: value}), name)
    assert kept == value
    assert type(kept) in (int, float, bool, str, tuple, dict, StructuredOutput, type(None))


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_bad_values_are_refused_by_name_value_and_rule(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedSamplingError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert message.startswith(name)
    assert "allowed: " in message or "must name at least one" in message
    assert caught.value.field in (name, None)
    assert isinstance(caught.value, RequestError)


def test_the_message_says_value_and_limits() -> None:
    with pytest.raises(UnsupportedSamplingError) as caught:
        SamplingParams(top_p=1.5, n="3")
    assert str(caught.value) == (
        "top_p = 1.5: Input should be less than or equal to 1; allowed: a number > 0.0 and <= 1.0; "
        "n = '3': must be a whole number, not str; allowed: a whole number >= 1 and <= 1024"
    )


def test_a_message_stays_short() -> None:
    with pytest.raises(UnsupportedSamplingError) as caught:
        SamplingParams(stop_token_ids=["x"] * 10_000, bad_words=["y" * 10_000, 3])
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("name", ["stop", "bad_words", "logits_stages"])
def test_one_text_is_a_list_of_one(name: str) -> None:
    assert getattr(SamplingParams(**{name: "ab"}), name) == ("ab",)


@pytest.mark.parametrize("name", ["stop", "bad_words", "logits_stages", "stop_token_ids"])
def test_null_lists_are_empty(name: str) -> None:
    assert getattr(SamplingParams(**{name: None}), name) == ()


def test_keys_of_json_objects_are_token_ids() -> None:
    assert SamplingParams(logit_bias={"12": 1, 7: -2.5}).logit_bias == {12: 1.0, 7: -2.5}


def test_lists_of_json_are_taken_as_tuples() -> None:
    params = SamplingParams(stop=["a"], stop_token_ids=[1], allowed_token_ids=[2, 3])
    assert (params.stop, params.stop_token_ids, params.allowed_token_ids) == (("a",), (1,), (2, 3))


def test_an_unknown_name_is_refused_with_the_likely_one() -> None:
    with pytest.raises(UnsupportedSamplingError, match=r"tempreature: .*did you mean temperature"):
        SamplingParams(tempreature=0.5)
    with pytest.raises(UnsupportedSamplingError, match="zzz: unknown parameter; known are allowed"):
        SamplingParams(zzz=1)


def test_an_unknown_name_of_a_form_is_refused_with_the_likely_one() -> None:
    with pytest.raises(UnsupportedSamplingError, match=r"structured.json_scheme: .*json_schema"):
        SamplingParams(structured={"json_scheme": {}})


def test_minimum_and_maximum_must_agree() -> None:
    with pytest.raises(UnsupportedSamplingError, match="min_tokens 5 exceeds max_tokens 4"):
        SamplingParams(min_tokens=5, max_tokens=4)
    assert SamplingParams(min_tokens=10**6, max_tokens=None).min_tokens == 10**6


def test_values_cannot_change() -> None:
    with pytest.raises(Exception, match="frozen"):
        SamplingParams().temperature = 2.0  # type: ignore[misc]


def test_given_values_win_over_defaults_of_the_model() -> None:
    """A field given explicitly wins also when it equals the default of the class."""
    given = SamplingParams(temperature=1.0, max_tokens=5)
    merged = given.with_defaults({"temperature": 0.6, "top_p": 0.9})
    assert (merged.temperature, merged.top_p, merged.max_tokens) == (1.0, 0.9, 5)
    again = merged.with_defaults({"top_p": 0.1})
    assert again.top_p == 0.9


def test_malformed_defaults_of_the_model_are_refused() -> None:
    with pytest.raises(UnsupportedSamplingError, match="top_p = 3"):
        SamplingParams().with_defaults({"top_p": 3.0})


def test_every_field_is_documented() -> None:
    assert [n for n, f in SamplingParams.model_fields.items() if not f.description] == []
