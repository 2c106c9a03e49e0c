"""What the proof on a GPU makes of its findings; the findings themselves need a GPU."""

import importlib
import json
import logging
import sys
import types
from pathlib import Path

import pytest
from deepinfer_core.testing.tiny import write_tiny_checkpoint

pytest.importorskip("triton")
SCRIPTS = Path(__file__).parents[3] / "deepinfer-cuda" / "scripts"
NAMES = ("vendor_ci", "ci_greedy", "ci_invariance", "ci_memory", "dummy_engine", "no_sync")


@pytest.fixture
def script(monkeypatch):
    """script(NAME): the module of a script."""
    monkeypatch.syspath_prepend(SCRIPTS)
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)


def answer(*token_ids, gap=1.0):
    logprobs = [types.SimpleNamespace(top_logprobs=(-0.5, -0.5 - gap))] * len(token_ids)
    return types.SimpleNamespace(
        output_token_ids=list(token_ids), logprobs=logprobs, num_prompt_tokens=7
    )


def test_answers_are_equal_close_or_different(script, monkeypatch):
    greedy = script("ci_greedy")
    answers = {
        "cpu": [answer(1, 2, 3), answer(1, 2, 3, gap=2e-4), answer(1, 2, 3, gap=0.25)],
        "cuda": [answer(1, 2, 3), answer(1, 9, 3), answer(1, 2, 4)],
    }
    monkeypatch.setattr(greedy, "generate", lambda path, prompts, *, kind, **_: answers[kind])
    assert greedy.compare_with_cpu(Path(), [], max_tokens=3) == {
        "equal": 1,
        "tokens": 9,
        "close": ["prompt of 7, token 1: the CPU's best two are 2.0e-04 apart"],
        "different": ["prompt of 7, token 2: the CPU's best two are 2.5e-01 apart"],
    }


def test_the_cpu_answers_text_and_ids_alike(script, tmp_path):
    greedy = script("ci_greedy")
    path = write_tiny_checkpoint(tmp_path, "llama")
    prompts = ["one two", [5, 6, 7]]
    requests = greedy.generate(path, prompts, kind="cpu", max_tokens=3, num_blocks=20)
    assert [len(request.output_token_ids) for request in requests] == [3, 3]
    assert requests[1].num_prompt_tokens == 3


def test_a_cut_model_has_fewer_layers_and_a_tokenizer(script, tmp_path):
    invariance = script("ci_invariance")
    config = {"num_hidden_layers": 36, "hidden_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with invariance.cut(tmp_path, 2) as path:
        found = json.loads((path / "config.json").read_text())
        assert found == {"num_hidden_layers": 2, "hidden_size": 4096}
        assert (path / "tokenizer.json").exists()
    assert json.loads((tmp_path / "config.json").read_text()) == config
    assert not (tmp_path / "tokenizer.json").exists()


def test_what_the_mode_costs_is_told_for_each_test(script, monkeypatch):
    invariance = script("ci_invariance")
    figures = {False: {"decode 1 x 9": 4.0}, True: {"decode 1 x 9": 5.0}}
    monkeypatch.setattr(
        invariance, "times", lambda path, tests, batch_invariant: figures[batch_invariant]
    )
    costs = invariance.cost(Path())
    assert costs == {"decode 1 x 9": {"plain_ms": 4.0, "invariant_ms": 5.0, "ratio": 1.25}}


def test_one_part_that_fails_leaves_the_others_and_a_report(script, monkeypatch, tmp_path):
    vendor_ci = script("vendor_ci")

    def broken(options):
        raise RuntimeError("no such instruction")

    parts = {"memory": broken, "model": lambda options: {"passed": True, "layers": options.layers}}
    monkeypatch.setattr(vendor_ci, "PARTS", parts)
    monkeypatch.setattr(vendor_ci.torch.cuda, "get_device_name", lambda: "a GPU")
    report = tmp_path / "report.json"
    monkeypatch.setattr(sys, "argv", ["", str(report), "--parts", "memory,model", "--layers", "2"])
    assert vendor_ci.main() == 1
    found = json.loads(report.read_text())
    assert found["gpu"] == "a GPU"
    assert not found["memory"]["passed"]
    assert "no such instruction" in found["memory"]["error"]
    assert found["model"]["layers"] == 2
    monkeypatch.setattr(sys, "argv", ["", "--parts", "model"])
    assert vendor_ci.main() == 0


def test_warnings_are_noted(script):
    noted = script("ci_memory").Noted()
    logger = logging.getLogger("deepinfer_core.engine")
    logger.addHandler(noted)
    try:
        logger.info("a step")
        logger.warning("memory ran out in a step of %d tokens", 7)
    finally:
        logger.removeHandler(noted)
    assert noted.messages == ["memory ran out in a step of 7 tokens"]
