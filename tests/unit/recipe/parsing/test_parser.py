"""Rules of the output parser that only odd outputs show; the vectors hold the common ones."""

import deepinfer_recipe as api
import pytest
from deepinfer_recipe.parsing import CallStart, Piece, TextDelta

D = "｜DSML｜"
CALL = f'<{D}invoke name="f">\n</{D}invoke>\n'


def parse(text, **options):
    parser = api.OutputParser(api.ParsingOptions(**options))
    return parser.feed(Piece(text)) + parser.finish()


@pytest.mark.parametrize("end", [f"</{D}tool_calls>", f"</{D} calls>"])
def test_nothing_behind_the_block_is_a_call_or_text(end):
    events = parse(f"so\n\n<{D}tool_calls>\n{CALL}{end}\nmore {CALL}")
    assert [event.name for event in events if isinstance(event, CallStart)] == ["f"]
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["so"]


def test_an_empty_stop_sequence_stops_nothing():
    (event,) = parse("ab", stop_sequences=["", "x"])
    assert event.text == "ab"
