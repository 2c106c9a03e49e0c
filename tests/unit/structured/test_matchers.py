"""What both backends promise of a matcher: fill, accept and rollback agree, however far back."""

import json

import numpy as np
import pytest
from deepinfer_core.errors import GrammarError
from deepinfer_core.structured.notation import to_notation
from deepinfer_core.structured.spec import StructuredOutput
from hypothesis import given, settings
from hypothesis import strategies as st

TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "tags": [
            {
                "begin": "<f=g>",
                "content": {"type": "json_schema", "json_schema": {"enum": [1, 12, None]}},
                "end": "</f>",
            }
        ],
    },
}
FORMS = {
    "schema": StructuredOutput(
        json_schema={
            "type": "object",
            "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
            "required": ["a"],
            "additionalProperties": False,
        }
    ),
    "recursive": StructuredOutput(grammar='root ::= "(" root ")" | "x" | root "," "x"'),
    "regex": StructuredOutput(regex="(ab|a(c|bd)*)+"),
    "tag": StructuredOutput(structural_tag=TAG),
}


def grammar_of(backend, name):
    notation, text = to_notation(FORMS[name], max_whitespace=1)
    return backend.compile(notation, text) if notation in backend.notations else None


def allowed(matcher):
    row = np.full(8, -1, dtype=np.int32)
    matcher.fill(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_was_taken_back_has_never_been(backends, form, data):
    """A walk that looks ahead and takes it back sees what a straight walk sees."""
    for backend in backends.values():
        if (grammar := grammar_of(backend, form)) is None:
            continue
        straight, looking = grammar.matcher(), grammar.matcher()
        for _ in range(data.draw(st.integers(1, 8))):
            num_taken = 0
            for _ in range(data.draw(st.integers(0, 5))):
                token = data.draw(st.integers(0, 300)) % 256
                options = allowed(looking)
                if options and data.draw(st.booleans()):
                    token = options[token % len(options)]
                is_accepted = looking.accept(token)
                assert is_accepted == (token in options)
                num_taken += is_accepted
            looking.rollback(num_taken)
            options = allowed(straight)
            assert allowed(looking) == options
            assert looking.can_end == straight.can_end
            if not options:
                break
            token = options[data.draw(st.integers(0, 255)) % len(options)]
            assert straight.accept(token) and looking.accept(token)


def test_matchers_of_one_grammar_do_not_know_each_other(backend):
    grammar = grammar_of(backend, "regex")
    first, second = grammar.matcher(), grammar.matcher()
    assert first.accept(ord("a")) and first.accept(ord("b"))
    assert not second.can_end
    assert allowed(second) == [ord("a")]


def test_a_finished_matcher_allows_nothing_and_raises_nothing(backend):
    compiled = backend.compile("ebnf", 'root ::= "ab"')
    matcher = compiled.matcher()
    assert matcher.accept(ord("a")) and matcher.accept(ord("b"))
    assert matcher.can_end
    assert allowed(matcher) == []
    assert not matcher.accept(ord("a"))
    matcher.rollback(1)
    assert allowed(matcher) == [ord("b")]


def test_schemas_within_structural_tags_are_ours(backends):
    """xgrammar lets `not` pass; here it is refused wherever it stands."""
    tag = json.loads(json.dumps(TAG).replace('{"enum": [1, 12, null]}', '{"not": {}}'))
    with pytest.raises(GrammarError, match=r"structural_tag: .*#/not"):
        to_notation(StructuredOutput(structural_tag=tag), max_whitespace=1)
    grammar = grammar_of(backends["xgrammar"], "tag")
    for text, is_whole in [("hi <f=g>12</f> there", True), ("<f=g>1", False), ("<f=g>2", None)]:
        matcher = grammar.matcher()
        accepted = all([matcher.accept(byte) for byte in text.encode()])
        assert (matcher.can_end if accepted else None) == is_whole
