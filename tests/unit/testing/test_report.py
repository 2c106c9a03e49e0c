"""The report counts everything, names what failed, and can be read by machines and people."""

import json

from deepinfer_core.testing.checks import Check, NonClaim
from deepinfer_core.testing.report import REPORT_VERSION, make_report
from deepinfer_core.testing.run import run_check
from deepinfer_core.testing.subject import find_subject
from deepinfer_core.testing.trial import NotPossibleError, RefusedError


def check(name, error=None, **fields):
    def run():
        if error is not None:
            raise error

    fields = {"level": "L1", "op": "norm.rms", "provider": "acme.rms", "dtype": "float32"} | fields
    return Check(name=name, run=run, **fields)


CHECKS = [
    check("plain"),
    check("residual", AssertionError("3 of 4 wrong"), claims=frozenset({"residual"})),
    check("odd", RefusedError("odd size"), dtype="float16"),
    check("far", NotPossibleError("no memory"), level="L2"),
    check("boom", KeyError("who"), level="L2", claims=frozenset({"empty_ok"})),
]


def report():
    claims = [NonClaim("norm.rms", "acme.rms", "law", "graph_safe")]
    return make_report(find_subject("builtin"), [run_check(c) for c in CHECKS], claims)


def test_outcomes():
    found = report()
    assert not found.ok
    assert [r.outcome for r in found.results] == [
        "passed", "failed", "refused", "not_run", "failed",
    ]  # fmt: skip
    assert [r.message for r in found.failures] == ["3 of 4 wrong", "KeyError: 'who'"]


def test_json_is_versioned_and_complete(tmp_path):
    path = tmp_path / "report.json"
    report().write(path)
    answer = json.loads(path.read_text())
    assert answer["version"] == REPORT_VERSION == 1
    assert answer["summary"] == {
        "ok": False, "passed": 1, "failed": 2, "refused": 1, "not_run": 1, "not_claimed": 1,
    }  # fmt: skip
    assert answer["plugin"]["name"] == "core" and answer["device"]["kind"] == "cpu"
    assert len(answer["results"]) == 5 and answer["results"][1]["claims"] == ["residual"]
    assert answer["not_claimed"][0]["what"] == "graph_safe"


def test_the_table_strikes_out_what_does_not_hold():
    table = report().to_markdown()
    row = next(line for line in table.splitlines() if line.startswith("| norm.rms"))
    assert row == "| norm.rms | acme.rms | ~~float32~~, float16 | ~~residual~~ | ~~empty_ok~~ |"
    assert "L1 norm.rms acme.rms float16 odd: odd size" in table
    assert "norm.rms acme.rms: graph_safe" in table
