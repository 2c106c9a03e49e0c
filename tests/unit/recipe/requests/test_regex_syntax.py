"""Patterns of JSON Schema as validators compile them: two engines, and ECMA 262 for old drafts."""

import pytest
from deepinfer_recipe.requests.regex_syntax import is_ecma_regex, is_regex

LAX_ONLY = [
    r"\é",
    "a{3,1}",
    "a{x}",
    "a{",
    r"(?<n>a)(?<n>b)",
    r"(?<n>a)\k<n>",
    "[\\b]",
    "(?>a)",
    "|{2}",
]


@pytest.mark.parametrize("pattern", LAX_ONLY)
def test_a_lookaround_or_back_reference_hands_over_to_the_laxer_engine(pattern):
    """All patterns were held to the stricter one."""
    assert not is_regex(pattern)
    assert not is_regex(f"{pattern}(?=)")  # what stands before was already refused
    for before in ("(?=)", "(?!x)", "(?<=x)", "(?<!x)", r"(x)\1"):
        assert is_regex(before + pattern)


@pytest.mark.parametrize("pattern", [r"\cA", r"[\cA]"])
def test_control_letters_are_translated_only_for_the_stricter_engine(pattern):
    assert is_regex(pattern) and is_regex(f"{pattern}(?=)")
    assert not is_regex(f"(?=){pattern}")


@pytest.mark.parametrize("pattern", ["(?:)", "(?i:)", "(?:(?:))", "(?:(?i))", "(?=)", "(?:(?=))"])
def test_nothing_and_lookarounds_cannot_be_repeated(pattern):
    """Only the bare `(?:)` and bare lookarounds were refused."""
    assert is_regex(pattern)
    assert not is_regex(f"{pattern}*")
    assert is_ecma_regex(f"{pattern}*") == (pattern in ("(?:)", "(?i:)", "(?:(?:))", "(?:(?=))"))
    assert is_regex(f"({pattern})*") and is_regex(f"(?:a{pattern})*")


@pytest.mark.parametrize(("pattern", "accepted"), [
    (r"\1(a)", True), (r"(a)\1", True), (r"\1", False), (r"\2(a)", False), (r"\1(?<n>a)", True),
])  # fmt: skip
def test_a_reference_needs_its_group_somewhere(pattern, accepted):
    """A group behind the reference did not count."""
    assert is_regex(pattern) == is_ecma_regex(pattern) == accepted


def test_a_brace_is_text_only_where_the_laxer_engine_reads_no_repetition():
    assert not is_regex("{2}") and not is_regex("(?=){2}") and not is_regex("(?=)(?i){2}")
    assert is_regex("(?={2})") and is_regex("(?=){") and is_regex("(?=)a{99999999999999999999}")
    assert not is_regex("(?=)a{999999}")
    assert is_regex("a+{2}") and is_regex("a{ 2 }*") and not is_regex("a**")


def test_counts_in_the_wrong_order_are_refused_in_a_lookbehind():
    assert is_regex("(?=a{3,1})") and is_regex("(?<=(?=a{3,1}))")
    assert not is_regex("(?<=a{3,1})") and not is_regex("(?<!(b|a{3,1}))")
    assert is_regex("(?<=b)a{3,1}")


def test_a_brace_behind_a_boundary_is_a_count():
    assert is_regex(r"\b{2}") and is_regex(r"(?=)\b{2}")
    assert is_regex(r"(?<=\b{2})") and not is_regex(r"(?<=\b*)") and is_regex(r"(?=\b*)")
    assert not is_regex(r"(?=)\b{") and not is_regex(r"(?=)\B{x}")


def test_a_bell_needs_a_class_or_the_laxer_engine():
    assert not is_regex(r"\a")
    assert is_regex(r"[\a]") and is_regex(r"(?=)\a") and is_regex(r"\a(?=)")


@pytest.mark.parametrize("pattern", ["[[:alpha:]]", r"\z", "(?i)", "a*+", "}", "^*", r"\x{41}"])
def test_what_validators_compile_is_not_all_ecma(pattern):
    assert is_regex(pattern) and not is_ecma_regex(pattern)


@pytest.mark.parametrize(
    "pattern", [r"\0", r"[\0-a]", r"\p{Zz}", r"\k<n>(?<n>a)", r"\ud800", "(?<$>a)"]
)
def test_what_is_ecma_is_not_all_compiled_by_validators(pattern):
    """ECMA 262 was held to what validators compile, also where nothing is to be compiled."""
    assert is_ecma_regex(pattern) and not is_regex(pattern)
    assert not is_ecma_regex(r"\00") and not is_ecma_regex(r"\u{110000}")
