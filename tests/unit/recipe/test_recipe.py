"""The recipe that an engine uses: a chat to ids, output ids to events."""

import deepinfer_recipe as api
import pytest
from deepinfer_recipe.parsing import CallArguments, CallStart, TextDelta
from deepinfer_recipe.recipe import ARCHITECTURES

USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALLS = (
    '\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="a" string="true">'
    "v</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)


@pytest.fixture(scope="module")
def recipe(tokenizer_json):
    return api.DeepseekRecipe("DeepseekV41ForCausalLM", tokenizer_json)


def texts(events, *, reasoning):
    parts = (e.text for e in events if isinstance(e, TextDelta) and e.is_reasoning is reasoning)
    return "".join(parts)


def run(parser, ids):
    events = []
    for token_id in ids:
        events += parser.feed([token_id])
    return events + parser.finish()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_chat_without_a_model_name_is_encoded(architecture, tokenizer_json):
    encoded = api.DeepseekRecipe(architecture, tokenizer_json).encode({"messages": USER})
    assert encoded.token_ids[0] == 0 and encoded.token_ids[-1] == 128821
    assert encoded.starts_in_reasoning and encoded.stop_token_ids == (1,)
    assert encoded.constraint is None and encoded.images == []


def test_an_unknown_architecture_is_refused(tokenizer_json):
    with pytest.raises(ValueError, match=r"no recipe for X; there are DeepseekV32ForCausalLM"):
        api.DeepseekRecipe("X", tokenizer_json)


def test_the_last_message_can_be_continued(recipe):
    chat = {
        "messages": [*USER, {"role": "assistant", "content": "He"}],
        "continue_final_message": True,
        "thinking": {"type": "disabled"},
    }
    encoded = recipe.encode(chat)
    assert not encoded.starts_in_reasoning
    assert encoded.request.conversation.messages[-1].prefix
    assert encoded.token_ids[-2:] == [128822, *recipe._tokenizer.encode("He")]


def test_only_what_the_request_relies_on_is_a_constraint(recipe):
    tools = {"messages": USER, "tools": [TOOL]}
    assert recipe.encode(tools).constraint is None
    strict = {"type": "function", "function": {"name": "f", "strict": True}}
    assert recipe.encode({**tools, "tools": [strict]}).constraint.kind == "tool_call"
    required = {**tools, "tool_choice": "required", "thinking": {"type": "disabled"}}
    assert recipe.encode(required).constraint.kind == "tool_call_required"
    json_word = [{"role": "user", "content": "json"}]
    chat = {"messages": json_word, "response_format": {"type": "json_object"}}
    assert recipe.encode(chat).constraint.kind == "json"


def test_output_ids_become_reasoning_answer_and_calls(recipe, tokenizer):
    encoded = recipe.encode({"messages": USER, "tools": [TOOL]})
    ids = [*tokenizer.encode("why 日本</think>so" + CALLS), 1]
    events = run(recipe.parser(encoded), ids)
    assert texts(events, reasoning=True) == "why 日本"
    assert texts(events, reasoning=False) == "so"
    assert [e.name for e in events if isinstance(e, CallStart)] == ["f"]
    arguments = "".join(e.json_text for e in events if isinstance(e, CallArguments))
    assert arguments == '{"a": "v"}'


def test_reasoning_without_an_end_can_be_promoted(recipe, tokenizer):
    """A model that never closed its reasoning left callers with empty content (R1, R3)."""
    encoded = recipe.encode({"messages": USER})
    ids = [*tokenizer.encode("the answer is 4"), 1]
    kept = run(recipe.parser(encoded), ids)
    assert (texts(kept, reasoning=True), texts(kept, reasoning=False)) == ("the answer is 4", "")
    promoted = run(recipe.parser(encoded, promotes_reasoning=True), ids)
    assert texts(promoted, reasoning=False) == "the answer is 4"  # and no end-of-text marker
    answered = run(recipe.parser(encoded, promotes_reasoning=True), tokenizer.encode("r</think>a"))
    assert texts(answered, reasoning=False) == "a"


@pytest.mark.parametrize("size", range(1, 9))
def test_bursts_of_tokens_say_the_same_as_one_at_a_time(recipe, tokenizer, size):
    """With drafts, several tokens arrive at once: calls failed more often than without (T11)."""
    encoded = recipe.encode({"messages": USER, "tools": [TOOL]})
    ids = [*tokenizer.encode("why 日本</think>\n\nso" + CALLS), 1]
    parser, events = recipe.parser(encoded), []
    for start in range(0, len(ids), size):
        events += parser.feed(ids[start : start + size])
    events += parser.finish()
    assert texts(events, reasoning=True) == "why 日本"
    assert texts(events, reasoning=False) == "so"
    assert [e.name for e in events if isinstance(e, CallStart)] == ["f"]
    arguments = "".join(e.json_text for e in events if isinstance(e, CallArguments))
    assert arguments == '{"a": "v"}'
