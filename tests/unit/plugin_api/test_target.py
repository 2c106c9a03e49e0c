"""Lazy targets are checked by shape at once and imported on demand."""

import json.decoder

import pytest
from deepinfer_core.plugin_api import CommandSpec, load_target, target_problem


def test_a_target_loads_also_a_nested_attribute():
    assert load_target("json.decoder:JSONDecoder") is json.decoder.JSONDecoder
    assert load_target("json.decoder:JSONDecoder.decode") is json.decoder.JSONDecoder.decode
    assert CommandSpec("j", "json:dumps").load() is json.dumps


@pytest.mark.parametrize("target", ["json", "json:", ":dumps", "a b:c", "json.dumps", "x:y:z", 3])
def test_malformed_targets_are_refused_without_importing(target):
    assert "module:attribute" in target_problem(target)
    with pytest.raises(ValueError, match="module:attribute"):
        load_target(str(target))


def test_a_missing_module_or_attribute_passes_through():
    assert target_problem("no_such_module:thing") is None
    with pytest.raises(ImportError):
        load_target("no_such_module:thing")
    with pytest.raises(AttributeError):
        load_target("json:thing")
