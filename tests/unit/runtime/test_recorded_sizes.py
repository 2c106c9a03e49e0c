"""Sizes are remembered from one start to the next, and nothing depends on the file."""

import pytest
from deepinfer_core.hint_file import HintFile
from deepinfer_core.runtime.recorded_sizes import RecordedSizes

SETUP = {"model": "a", "versions": {"torch": "1"}, "ops": [["norm.rms", "x"]]}


def test_what_one_start_adds_the_next_one_knows(tmp_path):
    first = RecordedSizes(str(tmp_path / "deep" / "er"), SETUP)
    assert first.sizes == []
    for size in (8, 1, 32, 8):
        first.add(size)
    assert RecordedSizes(str(tmp_path / "deep" / "er"), SETUP).sizes == [32, 8, 1]


def test_another_setup_starts_anew(tmp_path):
    RecordedSizes(str(tmp_path), SETUP).add(8)
    assert RecordedSizes(str(tmp_path), SETUP | {"model": "b"}).sizes == []


def test_processes_that_run_at_once_lose_nothing(tmp_path):
    first, second = RecordedSizes(str(tmp_path), SETUP), RecordedSizes(str(tmp_path), SETUP)
    first.add(1)
    second.add(2)
    first.add(4)
    assert RecordedSizes(str(tmp_path), SETUP).sizes == [4, 2, 1]


@pytest.mark.parametrize("content", [3, {"a": 1}, ["x", 8.5]])
def test_what_is_no_list_of_sizes_is_passed_over(tmp_path, content):
    HintFile(str(tmp_path), "recorded", SETUP).write(content)
    assert RecordedSizes(str(tmp_path), SETUP).sizes == []


def test_where_nothing_can_be_written_sizes_are_known_until_the_end(tmp_path):
    (tmp_path / "file").write_text("")
    sizes = RecordedSizes(str(tmp_path / "file"), SETUP)
    sizes.add(8)
    assert sizes.sizes == [8]
