"""Where a JSON Schema is searched for addresses and patterns, draft by draft."""

import deepinfer_recipe as api
import pytest

DRAFTS = {
    "4": "http://json-schema.org/draft-04/schema#",
    "6": "http://json-schema.org/draft-06/schema#",
    "7": "http://json-schema.org/draft-07/schema#",
    "2019": "https://json-schema.org/draft/2019-09/schema",
    "2020": "https://json-schema.org/draft/2020-12/schema",
}
ADDRESS = "http://h/y"


def is_accepted(schema):
    given = {"name": "n", "schema": {"type": "object", **schema}}
    body = {
        "model": "DeepSeek-V4.1-Flash",
        "messages": [{"role": "user", "content": "q"}],
        "response_format": {"type": "json_schema", "json_schema": given},
    }
    try:
        api.ChatCompletionRequest(body).convert(api.ConversionOptions())
    except api.ConversionError as error:
        assert str(error).startswith("Invalid json schema: ")
        return False
    return True


@pytest.mark.parametrize(("draft", "accepted"), [("4", True), ("6", False), ("2020", True)])
def test_only_drafts_6_and_7_hold_names_of_pattern_properties_to_ecma(draft, accepted):
    """Draft 4 was held to it too: POSIX classes are no ECMA 262, but validators compile them."""
    schema = {"patternProperties": {"^[[:alpha:]]": {}}}
    assert is_accepted({"$schema": DRAFTS[draft], **schema}) == accepted


@pytest.mark.parametrize(("draft", "found"), [("2019", True), ("2020", False), ("7", True)])
def test_dependencies_are_no_place_for_addresses_since_2020(draft, found):
    """An address under the old keyword was found in the newest draft, which only applies it."""
    named = {"dependencies": {"a": {"$id": ADDRESS}}, "properties": {"b": {"$ref": ADDRESS}}}
    assert is_accepted({"$schema": DRAFTS[draft], **named}) == found


@pytest.mark.parametrize(("draft", "found"), [("7", False), ("2019", True), ("2020", True)])
def test_the_schema_of_contents_is_searched_for_addresses(draft, found):
    """`contentSchema` was passed over."""
    properties = {"a": {"contentSchema": {"$id": ADDRESS}}, "b": {"$ref": ADDRESS}}
    assert is_accepted({"$schema": DRAFTS[draft], "properties": properties}) == found


@pytest.mark.parametrize(("draft", "found"), [("6", False), ("7", False), ("2019", True)])
def test_an_address_beside_a_reference_is_ignored_in_old_drafts(draft, found):
    """All siblings of a reference are; its address was not."""
    properties = {"a": {"$id": ADDRESS, "$ref": "#"}, "b": {"$ref": ADDRESS}}
    assert is_accepted({"$schema": DRAFTS[draft], "properties": properties}) == found


@pytest.mark.parametrize("keyword", ["contains", "if", "propertyNames", "contentSchema"])
def test_draft_4_is_searched_where_later_drafts_have_subschemas(keyword):
    """Addresses there were not found, though documents named there had to exist."""
    properties = {"a": {keyword: {"id": ADDRESS}}, "b": {"$ref": ADDRESS}}
    assert is_accepted({"$schema": DRAFTS["4"], "properties": properties})
    properties = {"a": {keyword: {"$ref": "http://h/none"}}}
    assert not is_accepted({"$schema": DRAFTS["4"], "properties": properties})


@pytest.mark.parametrize("keyword", ["unevaluatedProperties", "unevaluatedItems"])
def test_what_is_unevaluated_needs_more_of_a_schema(keyword):
    """An `if` without a branch was passed over, also by those that ask what was evaluated."""
    broken = {"if": {"pattern": "("}}
    assert is_accepted({"properties": {"a": broken}})
    assert not is_accepted({"properties": {"a": {**broken, keyword: False}}})
    assert not is_accepted({keyword: {}, "allOf": [broken]})
    assert not is_accepted({keyword: {}, "$ref": "#/$defs/b", "$defs": {"b": broken}})
    assert is_accepted({keyword: True, "allOf": [broken]})
    assert is_accepted({keyword: {}, "not": broken})
    dependent = {"dependentSchemas": {"b": broken}}
    assert is_accepted({keyword: {}, **dependent}) == (keyword == "unevaluatedItems")


def test_unevaluated_follows_dynamic_references_of_the_next_draft():
    dangling = {"$schema": DRAFTS["2019"], "$dynamicRef": "#none"}
    assert is_accepted(dangling)
    assert not is_accepted({**dangling, "unevaluatedProperties": False})


@pytest.mark.parametrize(("draft", "accepted"), [("4", True), ("7", True), ("2019", False)])
def test_patterns_beside_a_reference_are_not_compiled_in_old_drafts(draft, accepted):
    r"""They were; `\0` is ECMA 262, but validators do not compile it."""
    assert is_accepted({"$schema": DRAFTS[draft], "$ref": "#", "pattern": r"\0"}) == accepted
