"""Facts that stand beside numbers."""

import subprocess

import torch
from deepinfer_core.bench import machine
from deepinfer_core.bench.machine import describe_machine, read_bandwidth, source_commit


def test_the_machine_is_described_as_it_is_now():
    facts = describe_machine("cpu")
    assert facts.torch == torch.__version__
    assert facts.num_threads == torch.get_num_threads()
    assert facts.device == "cpu"
    assert facts.cpu


def test_bandwidth_is_measured_over_the_buffer_asked_for(monkeypatch):
    sizes = []
    ones = torch.ones

    def record(size, **options):
        sizes.append(size)
        return ones(size, **options)

    monkeypatch.setattr(torch, "ones", record)
    speed = read_bandwidth(1 << 20, repeats=3)
    assert sizes == [1 << 18]
    assert 1e7 < speed < 1e13


def test_a_quarter_of_the_free_memory_is_the_most(monkeypatch):
    monkeypatch.setattr(machine, "memory_info", lambda: (4 << 20, 8 << 20))
    ticks = iter(range(100))
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(ticks))
    assert read_bandwidth(1 << 30, repeats=2) == 1 << 20


def test_the_commit_says_whether_the_tree_was_edited(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    def commit(name):
        git("add", name)
        git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x")

    source, other = tmp_path / "machine.py", tmp_path / "other.py"
    source.write_text("a = 1\n")
    other.write_text("b = 1\n")
    assert source_commit(tmp_path) is None
    git("init", "-q")
    commit("other.py")
    assert source_commit(tmp_path) is None  # the package is no part of that tree
    commit("machine.py")
    found = source_commit(tmp_path)
    assert found is not None and len(found) >= 12 and not found.endswith("+changes")
    source.write_text("a = 2\n")
    assert source_commit(tmp_path) == f"{found}+changes"


def test_without_git_there_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source_commit() is None
