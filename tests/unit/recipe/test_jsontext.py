"""Numbers and limits of JSON in prompts."""

import pytest
from deepinfer_recipe.jsontext import JsonTextError, dumps_compact, loads


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00001, "0.00001"), (0.0000123, "0.0000123"), (1e-6, "1e-6"), (1.25e-7, "1.25e-7"),
        (1e15, "1000000000000000.0"), (1e16, "1e+16"), (1.2345678901234568e17,
        "1.2345678901234568e+17"), (-0.0, "-0.0"), (0.1, "0.1"), (5e-324, "5e-324"),
    ],
)  # fmt: skip
def test_floats_are_positional_between_1e_5_and_1e16(value, text):
    assert dumps_compact([value, 1e300])[1:].partition(",")[0] == text


def test_texts_nest_at_most_127_deep():
    assert loads("[" * 127 + "]" * 127)
    with pytest.raises(JsonTextError, match="recursion limit exceeded"):
        loads("[" * 128 + "]" * 128)


@pytest.mark.parametrize("text", ["\ufeff1", "NaN", "1e400", '"\\ud800"', "01", "", "1 2"])
def test_no_json(text):
    with pytest.raises(JsonTextError):
        loads(text)
