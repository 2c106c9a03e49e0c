"""Configuration: flat names are unique, and every field says what it means."""

import ast
import inspect
from collections import Counter

from deepinfer_core import config, sampling_params


def test_flat_names_belong_to_exactly_one_section():
    names = Counter(name for cls in config.SECTIONS.values() for name in cls.model_fields)
    assert [name for name, count in names.items() if count > 1] == []
    assert set(config.SECTIONS) == set(config.EngineConfig.model_fields)


def undocumented(module, cls):
    """Fields of a class without a string below them."""
    (node,) = [n for n in ast.parse(inspect.getsource(module)).body
               if isinstance(n, ast.ClassDef) and n.name == cls.__name__]  # fmt: skip
    fields, documented = [], set()
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign):
            fields.append(statement.target.id)
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                documented.add(statement.target.id)
    assert set(fields) == set(cls.model_fields), "parsed and real fields differ"
    return set(fields) - documented


def test_every_field_is_documented():
    for cls in config.SECTIONS.values():
        assert undocumented(config, cls) == set(), cls.__name__
    assert undocumented(sampling_params, sampling_params.SamplingParams) == set()
