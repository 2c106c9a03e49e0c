"""What a person with an NPU runs, on an emulated one; and what reads a wheel, without the wheel."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "deepinfer-ascend" / "scripts"


@pytest.fixture
def load():
    """load(NAME): a script as a module."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def shortened(vendor_ci, monkeypatch):
    """With one family, and little of it."""
    monkeypatch.setattr(vendor_ci, "TINY_FAMILIES", ("llama",))
    monkeypatch.setattr(vendor_ci, "PROMPT_LENGTHS", (3, 17))
    monkeypatch.setattr(vendor_ci, "MAX_TOKENS", 4)
    return vendor_ci


def test_one_command_leaves_a_report(load, tmp_path, monkeypatch):
    vendor_ci = shortened(load("vendor_ci"), monkeypatch)
    path = tmp_path / "report.json"
    words = [str(path), "--emulate", "910b", "--parts", "families,memory"]
    assert vendor_ci.main(words) == 0
    report = json.loads(path.read_text())
    assert (report["device"], report["is_emulated"]) == ("910b", True)
    assert report["families"]["llama"]["of"] == len(vendor_ci.PROMPT_LENGTHS)
    assert report["families"]["passed"] and report["memory"]["passed"]


def test_what_is_wrong_is_said(load, monkeypatch):
    vendor_ci = shortened(load("vendor_ci"), monkeypatch)
    monkeypatch.setattr(vendor_ci, "FACTOR", -1.0)

    def breaks(subject):
        raise RuntimeError("no such part")

    monkeypatch.setitem(vendor_ci.PARTS, "memory", breaks)
    assert vendor_ci.main(["--emulate", "910b", "--parts", "families,memory"]) == 1


def test_stubs_are_made_for_what_is_missing(load):
    stubs = load("stub_libraries")
    code = stubs.source(["aclrtGetSocName", "aclrtMalloc", "_ZTV5Thing"])
    assert "DEEPINFER_STUB_SOC" in code and ".type aclrtMalloc,@function" in code
    assert ".size _ZTV5Thing,256" in code and "_ZTV5Thing,@function" not in code
    names = ("libhccl.so", "libascendcl.so", "libacl_op_compiler.so", "libm.so.6")
    assert [bool(stubs.TOOLKIT.match(name)) for name in names] == [True, True, True, False]
