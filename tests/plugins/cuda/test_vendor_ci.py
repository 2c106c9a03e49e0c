"""What the proof on a GPU makes of its findings; the findings themselves need a GPU."""

import importlib
import inspect
import json
import logging
import sys
import types
from pathlib import Path

import pytest
from deepinfer_core.ops.reference import gemm, moe
from deepinfer_core.plugin_api import DeviceInfo
from deepinfer_core.plugins import PluginHost
from deepinfer_core.runtime.device import CpuRuntime
from deepinfer_core.testing.checks import list_checks
from deepinfer_core.testing.subject import Subject
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_cuda import plugin

pytest.importorskip("triton")
SCRIPTS = Path(__file__).parents[3] / "deepinfer-cuda" / "scripts"
NAMES = (
    *("vendor_ci", "ci_pool", "ci_conformance", "ci_greedy", "ci_invariance", "ci_memory"),
    *("ci_bits", "dummy_engine", "no_sync"),
)


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
        "passed": False,
        "counts": {"answers equal": 1, "close": 1, "tokens": 9},
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


def test_an_8b_model_may_have_fewer_layers_and_has_a_tokenizer(script):
    invariance = script("ci_invariance")
    with invariance.shape(num_hidden_layers=2) as path:
        found = json.loads((path / "config.json").read_text())
        assert found == invariance.EIGHT_B | {"num_hidden_layers": 2}
        assert (path / "tokenizer.json").exists()


def test_what_the_mode_costs_fails_where_a_test_cannot_be_run(script, monkeypatch):
    invariance = script("ci_invariance")
    costs = [{"test": "decode", "batch": 1, "ratio": 1.25}]

    def measure(config, tests, **options):
        assert config.model.load_format == "dummy"
        results = [{"test": test.kind} for test in tests]
        broken = [*results[1:], {"test": "ttft", "error": "no memory"}]
        return {"costs": costs, "plain": {"results": results}, "invariant": {"results": broken}}

    monkeypatch.setattr(invariance, "measure_invariance", measure)
    assert invariance.cost() == {"passed": False, "costs": costs, "errors": ["no memory"]}


def test_every_check_is_in_one_share(script, monkeypatch):
    conformance, vendor_ci = script("ci_conformance"), script("vendor_ci")
    host = PluginHost(load_entry_points=False)
    record = host.register(plugin, name="cuda")
    device = DeviceInfo("cuda", arch="9.0")
    kernels = [k for k in host.kernels(device) if k.provider.startswith("cuda.")]
    subject = Subject(record, device, CpuRuntime(device), kernels, host, source="cuda")
    monkeypatch.setattr(conformance, "find_subject", lambda name: subject)
    ran = []

    def note(check):
        ran.append(check.id)
        return types.SimpleNamespace(outcome="passed", message="")

    monkeypatch.setattr(conformance, "run_check", note)
    jobs = vendor_ci.conformance(vendor_ci.parse([]))
    counts = [conformance.run_checks(*job.arguments)["counts"]["checks"] for job in jobs]
    expected = [check.id for check in list_checks(subject) if "triton_plain" not in check.id]
    expected = [id for id in expected if "invariant_plain" not in id]  # these are for older GPUs
    assert sorted(ran) == sorted(expected)
    assert sum(counts) == len(ran) > 1000
    far = next(job for job in jobs if job.arguments[0] == "far")
    assert (
        sum("-far" in id for id in ran)
        == conformance.run_checks(*far.arguments)["counts"]["checks"]
    )


def test_what_a_kernel_refuses_is_told_and_no_failure(script, monkeypatch):
    """That a claim is refused in every case, another check finds."""
    conformance = script("ci_conformance")
    answers = {
        "a": ("passed", ""),
        "b": ("failed", "claimed, but no case is served; it says: flashinfer is not installed"),
        "c": ("failed", "off by 3"),
        "d": ("refused", "rounds rows, which the problem does not permit"),
    }
    checks = [types.SimpleNamespace(id=id, name="", level="L1") for id in answers]
    monkeypatch.setattr(conformance, "_all_checks", lambda: checks)

    def run(check):
        outcome, message = answers[check.id]
        return types.SimpleNamespace(outcome=outcome, message=message)

    monkeypatch.setattr(conformance, "run_check", run)
    assert conformance.run_checks("L1", 0, 1) == {
        "passed": False,
        "counts": {"checks": 2, "refused": 2, "failed": 1},
        "failed": {"c": "failed: off by 3"},
        "refusals": {answers[id][1]: 1 for id in "bd"},
    }
    assert conformance.run_checks("L1", 0, 1, "a")["passed"]


def test_one_part_that_fails_leaves_the_others_and_a_report(script, monkeypatch, tmp_path, capsys):
    vendor_ci = script("vendor_ci")
    good = [vendor_ci.Job("good", "x", "test_vendor_ci:passes", (n,)) for n in (3, 4)]
    broken = [vendor_ci.Job("bad", "y", "test_vendor_ci:breaks")]
    parts = {
        "good": vendor_ci.Part(lambda options: good[:1], 60),
        "bad": vendor_ci.Part(lambda options: broken, 60),
        "last": vendor_ci.Part(lambda options: [good[1]._replace(part="last")], 60, is_alone=True),
    }
    monkeypatch.setattr(vendor_ci, "PARTS", parts)
    monkeypatch.setattr(vendor_ci, "facts", lambda: {"gpu": "a GPU"})
    report = tmp_path / "report.json"
    monkeypatch.setattr(
        sys, "argv", ["", str(report), "--parts", "last,bad,good", "--workers", "1"]
    )
    assert vendor_ci.main() == 1
    found = json.loads(report.read_text())
    assert found["gpu"] == "a GPU"
    assert list(found["parts"]) == ["good", "bad", "last"]
    assert found["parts"]["good"]["counts"] == {"checks": 3}
    assert "no such instruction" in found["parts"]["bad"]["jobs"]["y"]["error"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("good         passed: 3 checks, ")
    assert lines[1].startswith("bad          FAILED: ")
    assert lines[2] == "  y: RuntimeError: no such instruction"
    assert lines[3].startswith("last         passed: 4 checks, ")
    assert lines[4] == "failed: bad"
    monkeypatch.setattr(sys, "argv", ["", "--parts", "good"])
    assert vendor_ci.main() == 0


def passes(count):
    return {"passed": True, "counts": {"checks": count}}


def breaks():
    raise RuntimeError("no such instruction")


def test_every_job_has_a_function(script):
    vendor_ci = script("vendor_ci")
    options = vendor_ci.parse(["--workers", "3"])
    assert set(options.parts) >= set(vendor_ci.PARTS) - {"cost", "model"}
    assert "cost" not in options.parts and ("model" in options.parts) == vendor_ci.MODEL.exists()
    for name, one in vendor_ci.PARTS.items():
        assert f"    {name} " in vendor_ci.__doc__
        assert f" {one.limit_s}  " in vendor_ci.__doc__
        for job in one.make_jobs(options):
            module, _, function = job.target.partition(":")
            assert job.part == name
            inspect.signature(getattr(script(module), function)).bind(*job.arguments)


def test_products_are_compared_with_what_they_should_be(script, monkeypatch):
    """Core's references stand for the kernels, and small matrices for the large ones."""
    bits = script("ci_bits")
    small = {
        "DEVICE": "cpu",
        "DENSE_SHAPES": ((60, 40),),
        "CODED_SHAPES": ((130, 256),),
        "EXPERTS": 8,
        "HIDDEN": 256,
        "FEATURES": 128,
        "TOP_K": 3,
        "dense": gemm.dense,
        "gated": gemm.gated,
        "coded": gemm.coded,
        "experts": moe.experts,
        "coded_experts": moe.coded,
        "_count_unequal": lambda product: 3 if product.func is gemm.gated else 0,
    }
    for name, value in small.items():
        monkeypatch.setattr(bits, name, value)
    monkeypatch.setattr(bits.torch.cuda, "get_device_capability", lambda: (9, 0))
    found = bits.repeat_products()
    assert found["wrong"] == {}
    assert found["unequal"] == {"gated": "3 of 200"} and not found["passed"]
    assert found["counts"] == {"products": 3 + 1 + 3 + 8}
    monkeypatch.setattr(bits, "dense", lambda x, weight: 1.1 * gemm.dense(x, weight))
    assert len(bits.repeat_products()["wrong"]) == 3


def test_a_part_that_does_not_exist_is_refused(script, capsys):
    with pytest.raises(SystemExit):
        script("vendor_ci").parse(["--parts", "bits,speed"])
    assert "no part is named speed; known: " in capsys.readouterr().err


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
