"""Without a library the plugin refuses with a reason, and core's kernels serve."""

import pytest
from deepinfer_core.config import EngineConfig
from deepinfer_core.ops.table import make_op_table
from deepinfer_core.plugins import PluginHost


@pytest.fixture
def host(cpu_build):
    """With core's kernels and the plugin's."""
    from deepinfer_cpu import plugin

    host = PluginHost(load_entry_points=False)
    host.register(plugin, name="cpu")
    return host


@pytest.fixture
def table(host):
    device = host.find_device("cpu")
    return make_op_table(host.kernels(device), device=device)


@pytest.fixture
def replace_library(monkeypatch, tmp_path):
    """replace_library(bytes | None): what lies where the library should be."""
    from deepinfer_cpu import library

    def replace(content: bytes | None) -> None:
        path = tmp_path / "library.so"
        if content is not None:
            path.write_bytes(content)
        monkeypatch.setattr(library.Library.__init__, "__defaults__", (path,))
        for cached in (library.library, library.problem):
            cached.cache_clear()

    yield replace
    monkeypatch.undo()
    for cached in (library.library, library.problem):
        cached.cache_clear()
    library.problem()  # loading it chooses the level: not when another test asks for its own


def reasons(table):
    table.bind("norm.rms", dtype="float32", features=["residual"])
    (choice,) = table.choices()
    return choice.provider, dict(choice.rejected).get("cpu.rms")


def test_the_library_serves(cpu_library, table):
    assert reasons(table) == ("cpu.rms", None)


def test_no_library(replace_library, table):
    replace_library(None)
    provider, reason = reasons(table)
    assert provider == "torch.reference"
    assert "not compiled" in reason and "python -m deepinfer_cpu.build" in reason


def test_an_engine_is_told_once(replace_library, host, cpu_library):
    device, config = host.find_device("cpu"), EngineConfig(model={"model": "model.gguf"})
    assert host.check_config(config, device) == []
    replace_library(None)
    (issue,) = host.check_config(config, device)
    assert issue.severity == "warning" and "not compiled" in issue.message


def test_a_broken_library(replace_library, table):
    replace_library(b"not a library")
    assert "cannot be loaded" in reasons(table)[1]


def test_a_library_of_other_sources(replace_library, table, cpu_library, cpu_build, monkeypatch):
    from deepinfer_cpu import library

    replace_library(cpu_build.LIBRARY.read_bytes())
    monkeypatch.setattr(library, "sources_key", lambda: "0" * 16)
    assert "other sources" in reasons(table)[1]


def test_products_say_which_instructions_they_need(cpu_library, at_level, table):
    at_level("scalar")
    for dtype, wanted in (("float32", "avx512"), ("bfloat16", "avx512_bf16")):
        table.bind("gemm.dense", dtype=dtype, in_features=64, out_features=64)
        rejected = dict(table.choices()[-1].rejected)
        assert f"{dtype} products need {wanted}, this CPU has scalar" in rejected["cpu.dense"]


def test_no_compiler(cpu_build, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(cpu_build.BuildError, match=r"no C\+\+ compiler"):
        cpu_build.build(tmp_path / "library.so")
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails(cpu_build, monkeypatch, tmp_path):
    compiler = tmp_path / "fails"
    compiler.write_text("#!/bin/sh\necho out of ideas\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    target = tmp_path / "built" / "library.so"
    target.parent.mkdir()
    with pytest.raises(cpu_build.BuildError, match=r"(?s)exits with 3.*out of ideas"):
        cpu_build.build(target)
    assert list(target.parent.iterdir()) == []
