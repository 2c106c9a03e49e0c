"""A hint is there at the next start of the same setup, and nothing depends on it."""

import json

import pytest
from deepinfer_core.hint_file import HintFile, default_directory

SETUP = {"model": "a", "versions": {"torch": "1"}, "ops": [["norm.rms", "x"]]}


def hints(directory, setup=SETUP):
    return HintFile(str(directory), "sizes", setup)


def test_what_one_start_writes_the_next_one_reads(tmp_path):
    directory = tmp_path / "deep" / "er"
    assert hints(directory).read() is None
    hints(directory).write([1])
    hints(directory).write([4, 2])
    assert hints(directory).read() == [4, 2]
    assert [path.suffix for path in directory.iterdir()] == [".json"]


def test_the_file_says_what_it_is_for(tmp_path):
    file = hints(tmp_path)
    file.write([4])
    assert file.path.name.startswith("sizes-")
    assert json.loads(file.path.read_text()) == {"sizes": [4], "setup": SETUP}


@pytest.mark.parametrize(
    "change", [{"model": "b"}, {"versions": {"torch": "2"}}, {"ops": [["norm.rms", "y"]]}]
)
def test_another_setup_has_another_file(tmp_path, change):
    hints(tmp_path).write([8])
    assert hints(tmp_path, SETUP | change).read() is None
    assert hints(tmp_path, dict(reversed(SETUP.items()))).read() == [8]


@pytest.mark.parametrize("content", ["", "[]", "{}", "\xff\xfe"])
def test_a_broken_file_is_no_file(tmp_path, content):
    file = hints(tmp_path)
    file.path.write_text(content, encoding="latin-1")
    assert file.read() is None


def test_where_nothing_can_be_written_nothing_happens(tmp_path):
    (tmp_path / "file").write_text("")
    hints(tmp_path / "file").write([8])
    assert hints(tmp_path / "file").read() is None


def test_the_directory_is_among_the_users_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "deepinfer"
    assert HintFile(None, "sizes", {}).path.parent == tmp_path / "deepinfer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_directory() == tmp_path / "home" / ".cache" / "deepinfer"
