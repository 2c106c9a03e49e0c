"""Binaries of CUDA C++ are kept from one start to the next, and never where they are not right."""

import pytest

pytest.importorskip("triton")
compiled = pytest.importorskip("deepinfer_cuda.compiled")
SOURCE = """
extern "C" __global__ void add(float *x) { x[threadIdx.x] += AMOUNT; }
"""


@pytest.fixture
def compile_add(monkeypatch, tmp_path):
    """compile_add(amount, arch): a binary; `compile_add.sources` are those that were compiled."""
    (tmp_path / "sources").mkdir()
    file = tmp_path / "sources" / "add.cu"
    file.write_text(SOURCE)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "files", lambda package: tmp_path)
    compile_text, sources = compiled._compile, []

    def note(text, *others):
        sources.append(text)
        return compile_text(text, *others)

    monkeypatch.setattr(compiled, "_compile", note)

    def compile_add(amount=1, arch="sm_90"):
        compiled.compile_source.cache_clear()  # as in a process of its own
        return compiled.compile_source("add", (("AMOUNT", amount),), arch)

    compile_add.sources, compile_add.file = sources, file
    yield compile_add
    compiled.compile_source.cache_clear()


def test_the_next_start_does_not_compile_again(compile_add):
    first = compile_add()
    assert first.startswith(b"\x7fELF")
    assert compile_add() == first
    assert len(compile_add.sources) == 1


def test_another_constant_architecture_or_source_is_compiled(compile_add):
    binaries = [compile_add(), compile_add(amount=2), compile_add(arch="sm_80")]
    compile_add.file.write_text(SOURCE.replace("+=", "-="))
    binaries.append(compile_add())
    assert len(set(binaries)) == len(compile_add.sources) == 4


def test_what_fails_is_not_kept(compile_add):
    compile_add.file.write_text("nonsense")
    for _ in range(2):
        with pytest.raises(
            compiled.SourceError, match=r"(?s)add does not compile for sm_90: .*nonsense"
        ):
            compile_add()
    assert len(compile_add.sources) == 2
