"""Expressions, choices and grammars mean the same with every backend."""

import re

import pytest
from deepinfer_core.errors import GrammarError
from deepinfer_core.structured.notation import to_notation
from deepinfer_core.structured.regex import parse_regex, size_of
from deepinfer_core.structured.spec import StructuredOutput
from hypothesis import given, settings
from hypothesis import strategies as st

ATOMS = st.sampled_from(["a", "b", "[ab]", "[^a]", ".", "\\d", "\\w", "é", "\\n", "x{2}"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)
TEXTS = st.text(alphabet="abxé1\n_", max_size=6)


@settings(max_examples=60, deadline=None)
@given(expression=EXPRESSIONS, texts=st.lists(TEXTS, min_size=4, max_size=8))
def test_expressions_match_as_python_has_them(backends, expression, texts):
    spec = StructuredOutput(regex=expression)
    wanted = [bool(re.fullmatch(expression, text, re.ASCII)) for text in texts]
    for backend in backends.values():
        compiled = backend.compile(*to_notation(spec, max_whitespace=0))
        assert [accepts(compiled, text) for text in texts] == wanted


def accepts(compiled, text):
    matcher = compiled.matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.can_end


@pytest.mark.parametrize(
    ("expression", "good", "bad"),
    [
        (r"[0-9]{3}-[0-9]{2,}", ["123-45", "000-000"], ["12-45", "123-4"]),
        (r"^(yes|no)$", ["yes", "no"], ["", "yesno"]),
        (r"^a$|^b", ["a", "b"], ["ab"]),
        (r"(?<year>\d{4})", ["2024"], ["24"]),
        (r"a*", ["", "aaa"], ["b"]),
        (r"\u{1F600}|\ud83d\ude01", ["😀", "😁"], ["😂"]),
        (r"[^\s\d]+?", ["ab", "é"], ["a b", "1", ""]),
        (r"\t\x41\/", ["\tA/"], ["A/"]),
    ],
)
def test_expressions(matches, expression, good, bad):
    assert [text for text in good if not matches(text, regex=expression)] == []
    assert [text for text in bad if matches(text, regex=expression)] == []


@pytest.mark.parametrize(
    "expression",
    [
        "(",
        "a)",
        "[a",
        "a{2,1}",
        "*a",
        "a**",
        "(?=a)",
        "(?<!a)b",
        r"\1",
        r"\b",
        "a^b",
        "[b-a]",
        "a{x}",
        "(?i)a",
        r"\p{L}",
        "(" * 200 + ")" * 200,
        "(a{1000}){1000}",
        "\\",
    ],
)
def test_what_has_no_grammar_is_refused_with_its_place(expression):
    with pytest.raises(GrammarError, match=r"^structured\.regex: ") as caught:
        to_notation(StructuredOutput(regex=expression), max_whitespace=0)
    assert caught.value.field == "structured.regex"


def test_an_expression_may_be_long():
    """Longer than the interpreter's stack, if a character were a call."""
    assert size_of(parse_regex("a" * 10_000, field="x")) == 10_000


def test_choices(matches):
    choice = ["yes", "no", "no!", 'q"\\', "né"]
    assert all(matches(text, choice=choice) for text in choice)
    assert not any(matches(text, choice=choice) for text in ["", "y", "no!!", "yesno"])


def test_any_json_object(matches):
    assert matches('{"a": {"b": [1, "x", null]}}', json_object=True)
    assert matches("{}", json_object=True)
    assert not any(matches(text, json_object=True) for text in ["[]", "1", "{", '{"a"}', "{} "])


GRAMMAR = """
# a sum of numbers
root ::= term ("+" term)*
term ::= number | "(" root ")"
number ::= [1-9] [0-9]{0,2}
       | "0"
"""
LARK = """
start: term ("+" term)*
term: "x" | "(" start ")"
"""


def test_grammars(matches):
    good, bad = ["1+(20+0)", "999", "((7))"], ["", "01", "1000", "(1", "1+"]
    assert [text for text in good if not matches(text, grammar=GRAMMAR)] == []
    assert [text for text in bad if matches(text, grammar=GRAMMAR)] == []


def test_grammars_of_lark(matches):
    assert all(matches(text, lark=LARK) for text in ["x", "x+x", "(x+(x))"])
    assert not any(matches(text, lark=LARK) for text in ["", "x+", "(x", "y"])


def test_a_rule_may_end_before_the_longest_match(matches):
    """A lexer that takes the longest match would refuse these."""
    grammar = 'root ::= word "b" | "(" root ")"\nword ::= [ab]*'
    assert all(matches(text, grammar=grammar) for text in ["b", "aab", "(bb)"])
    assert not matches("aa", grammar=grammar)


@pytest.mark.parametrize(
    "grammar",
    ["root ::= (", "foo", 'root ::= "a" |)', "root ::= missing", 'other ::= "a"', 'root ::= "a'],
)
def test_a_malformed_grammar_is_refused_with_words(backend, grammar):
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        backend.compile("ebnf", grammar)


@pytest.mark.parametrize("lark", ["start: (", "start: missing", 'other: "a"'])
def test_a_malformed_lark_grammar_is_refused_with_words(backend, lark):
    with pytest.raises(ValueError, match=r"\w+"):
        backend.compile("lark", lark)
