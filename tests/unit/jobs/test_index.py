"""Where rows start, and which journaled result is whose."""

import tracemalloc
from array import array
from pathlib import Path

import pytest
from deepinfer_core.errors import ConfigError
from deepinfer_core.jobs.index import KEY_BYTES, index_rows, match_keys, read_row


@pytest.fixture
def index(tmp_path):
    """Write lines and index them."""

    def index(*lines, settings=b"s"):
        path = tmp_path / "in.jsonl"
        path.write_bytes(b"\n".join(lines))
        return index_rows(path, settings)

    return index


def row(number, text=b"x"):
    return b'{"id": "%d", "prompt": "%s"}' % (number, text)


def test_rows_can_be_read_again_in_any_order(index, tmp_path):
    lines = [row(1), b"", b"  " + row(2) + b" \r", b"\t", b"no json", row(3)]
    found = index(*lines)
    assert list(found.line_numbers) == [1, 3, 5, 6]
    with (tmp_path / "in.jsonl").open("rb") as file:
        read = [read_row(file, found, n) for n in (3, 0, 2, 1)]
    assert read == [row(3), row(1), b"no json", row(2)]


def test_duplicates_do_not_open_the_file_again(index, monkeypatch):
    opened = []
    open_path = Path.open

    def noting_open(path, *args, **options):
        opened.append(path)
        return open_path(path, *args, **options)

    monkeypatch.setattr(Path, "open", noting_open)
    found = index(*[row(1)] * 30)
    assert len(found.duplicates) == 29
    assert len(opened) <= 3  # one writes the file


def test_a_key_changes_with_settings_id_and_content_only(index):
    key = index(row(1)).key(0)
    assert index(row(2), row(1)).key(1) == key
    assert index(row(1), settings=b"t").key(0) != key
    assert index(row(1, b"y")).key(0) != key
    assert index(row(2)).key(0) != key
    # Without an id, the place is the id.
    assert index(b'{"prompt": "x"}').key(0) != index(b"", b'{"prompt": "x"}').key(0)


def test_duplicates_point_to_the_first_and_have_keys_of_their_own(index):
    found = index(row(1), row(2), row(1), row(1), b'{"id": 1, "prompt": "x"}')
    assert found.duplicates == {2: 0, 3: 0}
    assert len({found.key(n) for n in range(5)}) == 5


def test_the_last_result_of_a_row_counts(index):
    found = index(row(1), row(2), row(3))
    stranger = b"\0" * KEY_BYTES
    keys = bytearray(found.key(1) + stranger + found.key(0) + found.key(1))
    assert list(match_keys(found, keys, array("Q", [10, 20, 30, 40]))) == [30, 40, -1]
    assert list(match_keys(found, bytearray(), array("Q"))) == [-1, -1, -1]


def test_half_a_key_is_no_match(index):
    found = index(row(1))
    half = found.key(0)[: KEY_BYTES // 2]
    keys = bytearray(half + b"\0" * (KEY_BYTES // 2))
    assert list(match_keys(found, keys, array("Q", [10]))) == [-1]


def test_memory_does_not_grow_with_the_size_of_rows(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(row(n, b"x" * 10_000) for n in range(500)))
    tracemalloc.start()
    found = index_rows(path, b"s")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 500
    assert peak_bytes < 500_000  # of a file of 5 MB


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        index_rows(tmp_path / "none", b"s")
