"""The journal: whatever was appended is there, wherever the last write was torn."""

import json
import os
import subprocess
import sys

from deepinfer_core.jobs.index import KEY_BYTES
from deepinfer_core.jobs.journal import Journal
from hypothesis import given, settings
from hypothesis import strategies as st

SETTINGS = {"model": "m", "text": "é\n"}
texts = st.text(max_size=12)


def results_of(journal):
    keys = bytes(journal.keys)
    results = map(json.loads, journal.read(journal.offsets))
    return {keys[n * KEY_BYTES :][:KEY_BYTES]: result["t"] for n, result in enumerate(results)}


@settings(max_examples=60, deadline=None)
@given(st.lists(texts, min_size=1, max_size=6), st.lists(texts, max_size=3), st.data())
def test_a_tear_costs_the_torn_result_only(tmp_path_factory, before, after, data):
    path = tmp_path_factory.mktemp("j") / "journal"
    ends = []
    journal = Journal(path)
    journal.start(SETTINGS)
    header_end = path.stat().st_size
    for number, text in enumerate(before):
        journal.append(number.to_bytes(KEY_BYTES, "big"), {"t": text})
        ends.append(path.stat().st_size)
    journal.close()
    cut = data.draw(st.integers(0, ends[-1]))
    path.write_bytes(path.read_bytes()[:cut])

    journal = Journal(path)
    found = journal.load()
    assert found == (SETTINGS if cut >= header_end else None)
    whole = [n for n, end in enumerate(ends) if end <= cut]
    assert results_of(journal) == {n.to_bytes(KEY_BYTES, "big"): before[n] for n in whole}
    if found is None:
        journal.start(SETTINGS)
    added = {}
    for number, text in enumerate(after, start=100):
        key = number.to_bytes(KEY_BYTES, "big")
        offset = journal.append(key, {"t": text})
        assert json.loads(next(journal.read([offset]))) == {"t": text}
        added[key] = text
    kept = results_of(journal)
    journal.close()

    journal = Journal(path)
    assert journal.load() == SETTINGS
    assert results_of(journal) == kept | added
    journal.close()


def test_half_a_character_in_an_id_survives(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.start({})
    offset = journal.append(b"k" * KEY_BYTES, {"id": "\ud800é"})
    assert json.loads(next(journal.read([offset]))) == {"id": "\ud800é"}
    journal.close()


def test_line_ends_are_written_as_they_are():
    """Where files are opened as text unless told otherwise, every offset was wrong."""
    code = (
        "import os; os.O_BINARY = 1 << 30; opened = []\n"
        "os.open = lambda path, flags, *rest: opened.append(flags) or exit(flags >> 30)\n"
        "from deepinfer_core.jobs.journal import Journal; Journal('x')"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert ended.returncode == 1
