"""Answers in a given form, from a request to its text, on a tiny random model."""

import json

import pytest
from deepinfer_core import LLM
from deepinfer_core.testing.tiny import write_tiny_checkpoint

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "llama", "llama")
    with LLM(model, dtype="float32", num_blocks=400, plugins=()) as llm:
        yield llm


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_is_json_that_fits_its_schema(llm, temperature):
    params = {
        "structured": {"json_schema": SCHEMA},
        "max_tokens": 300,
        "temperature": temperature,
        "seed": 3,
    }
    (output,) = llm.generate("A person: ", params)
    answer = json.loads(output.text)
    assert list(answer) == ["name", "age", "tags"]
    assert 0 <= answer["age"] <= 150
    assert len(answer["name"]) <= 12
    assert set(answer["tags"]) <= {"a", "b"}
    assert output.outputs[0].finish_reason == "stop"


def test_unconstrained_neighbours_get_what_they_get_alone(llm):
    free = {"max_tokens": 12, "temperature": 1.0, "seed": 5}
    alone = llm.generate("hello", free)[0].outputs[0].token_ids
    held = {"structured": {"json_schema": SCHEMA}, "max_tokens": 60, "seed": 3}
    outputs = llm.generate(["A person: ", "hello", "A person: "], [held, free, held])
    assert outputs[1].outputs[0].token_ids == alone


def test_a_refused_form_fails_its_own_request_and_names_the_place(llm):
    bad = {"structured": {"json_schema": {"properties": {"a": {"not": {}}}}}, "max_tokens": 4}
    outputs = llm.generate(["x", "x"], [bad, {"max_tokens": 4}])
    assert "#/properties/a/not" in str(outputs[0].error)
    assert outputs[1].error is None
    assert len(outputs[1].outputs[0].token_ids) == 4


def test_metrics_count_masks_and_grammars(llm):
    before = llm.metrics()
    params = {"structured": {"choice": ["yes", "no", "never"]}, "max_tokens": 10}
    (output,) = llm.generate("x", params)
    assert output.text in ("yes", "no", "never")
    llm.generate("x", params)
    after = llm.metrics()
    assert after.num_mask_rows > before.num_mask_rows
    assert after.num_grammars_compiled == before.num_grammars_compiled + 1
    assert after.num_grammar_hits == before.num_grammar_hits + 1
    assert after.mask_fill_s > before.mask_fill_s
    assert after.grammar_compile_s > before.grammar_compile_s
