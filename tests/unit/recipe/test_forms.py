"""Calls of strict tools, and answers of a form, are held to what was asked for."""

import json

import pytest
from deepinfer_core.errors import GrammarError, RequestError
from deepinfer_core.structured.marks import TokenMarks, make_vocabulary
from deepinfer_core.structured.notation import to_notation
from deepinfer_core.structured.spec import StructuredOutput
from deepinfer_core.structured.xgrammar_backend import XgrammarBackend
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_recipe.plugin import EngineRecipe

from .test_plugin import BEGIN, END, USER, llm, tokenizers  # noqa: F401  a fixture

STRICT = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Ulm", "Kyōto"]},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
                "required": ["city", "days", "unit"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "clock", "strict": True, "parameters": {"type": "object"}},
    },
]
FREE = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
NO_THINKING = {"thinking": {"type": "disabled"}}
D = "｜DSML｜"
ARCHITECTURES = ["DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "DeepseekV41ForCausalLM"]


def line(name, is_string, value, prefix=" "):
    kind = "true" if is_string else "false"
    return f'<{D}{prefix}parameter name="{name}" string="{kind}">{value}</{D}{prefix}parameter>\n'


def call(name, *lines, prefix=" ", empty="\n"):
    body = "".join(lines) or empty
    return f'<{D}{prefix}invoke name="{name}">\n{body}</{D}{prefix}invoke>\n'


GOOD = call(
    "weather", line("city", True, "Ulm"), line("days", False, "[1, 2]"), line("unit", False, "null")
)
BAD = {
    "a value": GOOD.replace("Ulm", "Rome"),
    "an order": call(
        "weather",
        line("days", False, "[1]"),
        line("city", True, "Ulm"),
        line("unit", False, "null"),
    ),
    "a lack": call("weather", line("city", True, "Ulm"), line("days", False, "[]")),
    "a kind": GOOD.replace('"days" string="false"', '"days" string="true"'),
    "a name": GOOD.replace("weather", "whether"),
    "an excess": call("clock", line("a", True, "b")),
    "a quoted string": GOOD.replace("Ulm", '"Ulm"'),
}


@pytest.fixture(scope="module")
def core(tokenizer_json):
    return Tokenizer(tokenizers.Tokenizer.from_str(tokenizer_json))


@pytest.fixture(scope="module")
def belongs(core):
    """Whether a text, spelled in tokens, is one of a form."""
    marks = TokenMarks((name, i) for i, name in sorted(core.added_tokens.items()))
    backend = XgrammarBackend(make_vocabulary(core, core.vocab_size, (), marks.by_id))

    def check(form, text):
        spec = StructuredOutput(**form)
        matcher = backend.compile(
            *to_notation(spec, max_whitespace=2, marks=marks.by_name)
        ).matcher()
        return all(matcher.accept(i) for i in core.encode(text)) and matcher.can_end

    return check


def form_of(tokenizer_json, architecture, tools=STRICT, **fields):
    recipe = EngineRecipe(architecture, tokenizer_json)
    return recipe.encode({"messages": USER, "tools": tools, **NO_THINKING, **fields}).constraint


def test_a_strict_call_belongs_and_others_do_not(tokenizer_json, belongs):
    form = form_of(tokenizer_json, "DeepseekV41ForCausalLM")
    assert belongs(form, "just an answer")
    assert belongs(form, f"let me see{BEGIN}{GOOD}{END}")
    assert belongs(form, f"{BEGIN}{GOOD}{call('clock')}{END}")
    assert belongs(form, f"{BEGIN}{GOOD.replace('null', 'true')}{END}") is False
    text_unit = line("unit", True, 'a "b" < c\n')
    assert belongs(form, f"{BEGIN}{GOOD.replace(line('unit', False, 'null'), text_unit)}{END}")
    assert {why for why, bad in BAD.items() if belongs(form, f"{BEGIN}{bad}{END}")} == set()
    assert not belongs(form, f"{BEGIN}{END}")
    assert not belongs(form, f"{BEGIN}{GOOD}")
    assert not belongs(form, f"an answer with {D} in it")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_required_call_has_to_be_made_in_every_dialect(tokenizer_json, belongs, architecture):
    form = form_of(tokenizer_json, architecture, FREE, tool_choice="required")
    v41 = architecture == "DeepseekV41ForCausalLM"
    dialect = {"prefix": " " if v41 else "", "empty": "\n" if v41 else ""}
    block = {"DeepseekV32ForCausalLM": "function_calls", "DeepseekV4ForCausalLM": "tool_calls"}
    end = f"</{D}{block.get(architecture, ' calls')}>"
    given = line("any", False, '{"x": 1}', dialect["prefix"])
    assert belongs(form, call("f", **dialect) + end)
    assert belongs(form, call("f", given, **dialect) + end)
    assert not belongs(form, call("g", **dialect) + end)
    assert not belongs(form, "no " + call("f", **dialect) + end)
    assert not belongs(form, end)
    assert not belongs(form, "")


def test_calls_that_are_free_are_not_held(tokenizer_json):
    assert form_of(tokenizer_json, "DeepseekV41ForCausalLM", FREE) is None


def test_a_strict_tool_whose_schema_cannot_be_held_is_refused_by_path(tokenizer_json, belongs):
    tools = json.loads(
        json.dumps(STRICT).replace('"type": "integer"', '"type": "integer", "multipleOf": 3')
    )
    form = form_of(tokenizer_json, "DeepseekV41ForCausalLM", tools)
    with pytest.raises(GrammarError, match=r"markup: .*#/items/multipleOf"):
        belongs(form, "x")


PARAMS = {"max_tokens": 200, "temperature": 1.0, "n": 4, "seed": 1}
BOUNDED = json.loads(json.dumps(STRICT))
BOUNDED[0]["function"]["parameters"]["properties"] = {
    "city": {"type": "string", "enum": ["Ulm", "Kyōto"]},
    "warm": {"type": "boolean"},
}
BOUNDED[0]["function"]["parameters"]["required"] = ["city", "warm"]


def test_a_model_that_knows_nothing_makes_the_calls(llm):  # noqa: F811
    options = {"tool_choice": "required", **NO_THINKING}
    (output,) = llm.chat(USER, PARAMS, tools=BOUNDED[:1], chat_template_kwargs=options)
    assert output.error is None
    num_whole = 0
    for sample in output.outputs:
        assert D not in json.dumps(sample.message, ensure_ascii=False)
        assert sample.content == ""
        is_whole = sample.finish_reason == "stop"
        num_whole += is_whole
        for made in sample.tool_calls if is_whole else sample.tool_calls[:-1]:
            arguments = json.loads(made.arguments)
            assert made.name == "weather"
            assert list(arguments) == ["city", "warm"]
            assert arguments["city"] in ("Ulm", "Kyōto")
            assert arguments["warm"] in (True, False)
        assert sample.tool_calls
    assert num_whole > 0


def test_a_response_format_is_held_behind_thinking(llm):  # noqa: F811
    """Engines put the answer into the reasoning, or held the reasoning to the form."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    options = {"response_format": wanted}
    params = {**PARAMS, "thinking_budget": 5}
    (output,) = llm.chat(USER, params, chat_template_kwargs=options)
    assert output.error is None
    for sample in output.outputs:
        assert list(json.loads(sample.content)) == ["a"]
        assert len(sample.reasoning_content) > 0
        assert sample.finish_reason == "stop"
        assert "think" not in json.dumps(sample.message)


def test_two_forms_at_once_are_refused(llm):  # noqa: F811
    params = {**PARAMS, "structured": {"regex": "a+"}}
    options = {"response_format": {"type": "json_object"}}
    messages = [{"role": "user", "content": "json"}]
    with pytest.raises(RequestError, match=r"structured\.regex: the conversation asks"):
        llm.chat(messages, params, chat_template_kwargs=options, on_error="raise")
