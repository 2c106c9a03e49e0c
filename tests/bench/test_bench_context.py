"""The script that measures long contexts, at short ones: it runs, and counts bytes right."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "scripts"
ROW_BYTES = 2 * 32 * 4
"""A row and an index key of V4 and V4.1 as the script makes them, float32."""


@pytest.fixture
def script(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.syspath_prepend(SCRIPTS)
    module = importlib.import_module("bench_context")
    short = {name: replace(family, prompt_len=600) for name, family in module.FAMILIES.items()}
    changes = {"NUM_TOKENS": 6, "SKIPPED_CHUNK": 1024, "CONTEXTS": (1024, 4096), "FAMILIES": short}
    for name, value in changes.items():
        monkeypatch.setattr(module, name, value)
    yield module
    torch.set_num_threads(before)


def test_every_family_is_measured(script, tmp_path):
    families = {family: script.measure(family) for family in script.FAMILIES}
    for family, rows_per_token in (("deepseek_v41", 1.5), ("deepseek_v4", 3 / 4)):
        short, long = families[family]["decode"]
        grown = long["held_bytes"] - short["held_bytes"]
        heavy = 2 * 32 * 4 / 128 if family == "deepseek_v4" else 0  # rows of 128, without keys
        assert grown == pytest.approx(3072 * (rows_per_token * ROW_BYTES + heavy), rel=0.05)
    dense = families["deepseek_v3"]["decode"][1]
    assert dense["read_bytes"] == 4096 * 6 * 48 * 4
    assert len(families["deepseek_v4"]["prefill"]["steps_ms"]) == 2
    report = {"machine": {"cpu": "this"}, "chunk": 512, "families": families}
    script.draw(json.loads(json.dumps(report)), tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
