"""Compiling happens beside whoever asks, once for each form, and within a time limit."""

import threading
import time

import pytest
from deepinfer_core.errors import GrammarError
from deepinfer_core.structured.compiler import GrammarCompiler
from deepinfer_core.structured.spec import StructuredOutput


class Backend:
    notations = frozenset({"ebnf"})

    def __init__(self):
        self.texts = []
        self.gate = threading.Event()
        self.gate.set()

    def compile(self, notation, text):
        self.texts.append(text)
        if "slow" in text:
            self.gate.wait(30)
        if "bad" in text:
            raise ValueError("line 3 is bad")
        if "worse" in text:
            raise KeyError("x")
        return text


@pytest.fixture
def backend():
    backend = Backend()
    yield backend
    backend.gate.set()


def make(backend, **options):
    options = {"timeout_s": 20.0, "max_grammars": 3, "max_whitespace": 2, "marks": {}, **options}
    return GrammarCompiler(lambda names_tokens: backend, **options)


def grammar(text):
    return StructuredOutput(grammar=text)


def test_a_form_is_compiled_once_and_kept(backend):
    compiler = make(backend)
    first = compiler.compile(grammar("a"))
    assert first.result(5) == "a"
    assert compiler.compile(grammar("a")) is first
    for name in "bcd":
        compiler.compile(grammar(name)).result(5)
    del first
    compiler.compile(grammar("a")).result(5)  # three newer ones have taken its place
    assert backend.texts == ["a", "b", "c", "d", "a"]
    counts = compiler.counts
    assert (counts.num_compiled, counts.num_hits) == (5, 1)


def test_what_is_in_use_is_not_compiled_again_however_many_come_between(backend):
    compiler = make(backend, max_grammars=1)
    held = compiler.compile(grammar("a"))
    held.result(5)
    for name in "bcd":
        compiler.compile(grammar(name)).result(5)
    assert compiler.compile(grammar("a")) is held


def test_the_same_form_written_otherwise_is_the_same(backend):
    compiler = make(backend)
    first = compiler.compile(StructuredOutput(json_schema='{"type":  "null"}'))
    assert compiler.compile(StructuredOutput(json_schema={"type": "null"})) is first


@pytest.mark.parametrize(
    ("text", "words"), [("bad", "line 3 is bad"), ("worse", "cannot be compiled: 'x'")]
)
def test_what_a_backend_raises_ends_one_request_and_is_tried_again(backend, text, words):
    compiler = make(backend)
    for _ in range(2):
        with pytest.raises(GrammarError, match=words) as caught:
            compiler.compile(grammar(text)).result(5)
        assert caught.value.field == "structured.grammar"
    assert backend.texts == [text] * 2
    assert compiler.compile(grammar("a")).result(5) == "a"


def test_a_slow_grammar_holds_up_nobody_and_ends_in_time(backend):
    backend.gate.clear()
    compiler = make(backend, timeout_s=0.2)
    slow = [compiler.compile(grammar(f"slow {i}")) for i in range(3)]
    quick = compiler.compile(grammar("a"))
    begun = time.monotonic()
    assert quick.result(5) == "a"
    for future in slow:
        with pytest.raises(GrammarError, match=r"longer than 0.2 s .*compile_timeout_s"):
            future.result(5)
    assert time.monotonic() - begun < 4


def test_a_notation_that_a_backend_does_not_read_is_refused(backend):
    with pytest.raises(GrammarError, match="does not read lark; choose another"):
        make(backend).compile(StructuredOutput(lark="start: x")).result(5)


def test_no_backend_says_what_to_install():
    def missing(names_tokens):
        raise GrammarError("no grammar backend is installed")

    compiler = GrammarCompiler(missing, timeout_s=5.0, max_grammars=3, max_whitespace=2, marks={})
    with pytest.raises(GrammarError, match="no grammar backend is installed"):
        compiler.compile(grammar("a")).result(5)
