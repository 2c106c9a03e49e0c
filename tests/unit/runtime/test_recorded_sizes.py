"""Sizes are remembered from one start to the next, and nothing depends on the file."""

import json

import pytest
from deepinfer_core.runtime.recorded_sizes import RecordedSizes, default_directory

SETUP = {"model": "a", "versions": {"torch": "1"}, "ops": [["norm.rms", "x"]]}


def test_what_one_start_adds_the_next_one_knows(tmp_path):
    first = RecordedSizes(tmp_path / "deep" / "er", SETUP)
    assert first.sizes == []
    for size in (8, 1, 32, 8):
        first.add(size)
    assert RecordedSizes(tmp_path / "deep" / "er", SETUP).sizes == [32, 8, 1]
    assert [path.suffix for path in first.path.parent.iterdir()] == [".json"]


def test_the_file_says_what_it_is_for(tmp_path):
    sizes = RecordedSizes(tmp_path, SETUP)
    sizes.add(4)
    assert json.loads(sizes.path.read_text()) == {"sizes": [4], "setup": SETUP}


@pytest.mark.parametrize(
    "change", [{"model": "b"}, {"versions": {"torch": "2"}}, {"ops": [["norm.rms", "y"]]}]
)
def test_another_setup_starts_anew(tmp_path, change):
    RecordedSizes(tmp_path, SETUP).add(8)
    assert RecordedSizes(tmp_path, SETUP | change).sizes == []
    assert RecordedSizes(tmp_path, dict(reversed(SETUP.items()))).sizes == [8]


def test_processes_that_run_at_once_lose_nothing(tmp_path):
    first, second = RecordedSizes(tmp_path, SETUP), RecordedSizes(tmp_path, SETUP)
    first.add(1)
    second.add(2)
    first.add(4)
    assert RecordedSizes(tmp_path, SETUP).sizes == [4, 2, 1]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"sizes": 3}', '{"sizes": ["x", 8.5]}'])
def test_a_broken_file_is_no_file(tmp_path, content):
    sizes = RecordedSizes(tmp_path, SETUP)
    sizes.path.write_text(content)
    assert RecordedSizes(tmp_path, SETUP).sizes == []


def test_where_nothing_can_be_written_sizes_are_known_until_the_end(tmp_path):
    (tmp_path / "file").write_text("")
    sizes = RecordedSizes(tmp_path / "file", SETUP)
    sizes.add(8)
    assert sizes.sizes == [8]


def test_the_directory_is_among_the_users_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "deepinfer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_directory() == tmp_path / "home" / ".cache" / "deepinfer"
