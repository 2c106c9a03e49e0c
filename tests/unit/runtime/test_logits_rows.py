"""Which logits a step needs, and what is left of what they drew."""

from deepinfer_core.runtime.logits_rows import logits_rows
from deepinfer_core.sampling.result import HostTokens
from deepinfer_core.scheduling.plan import StepPlan, TokenLogprobs

PLAN = StepPlan(
    0,
    rows=[4, 2, 7],
    num_computed_tokens=[10, 0, 5],
    num_scheduled_tokens=[3, 4, 2],
    token_ids=[1, 21, 22, 5, 6, 7, 8, 9, 31],
    sample_rows=[4, 2, 9, 7],
    sample_sources=[0, 1, 1, 2],
    sample_positions=[11, 4, 4, 6],
    num_drafts={0: 2, 3: 1},
)
"""Row 9 forks from row 2."""


def test_a_row_draws_behind_its_last_token_and_behind_each_draft():
    wanted = logits_rows(PLAN)
    assert wanted.rows == [4, 4, 4, 2, 9, 7, 7]
    assert wanted.positions == [11, 12, 13, 4, 4, 6, 7]
    assert wanted.sources == [0, 1, 2, 6, 6, 7, 8]
    assert wanted.drafts == [(), (21,), (21, 22), (), (), (), (31,)]
    assert wanted.drafted == [1, 2, 8]
    table = wanted.verify_table()
    assert table.draft_ids.tolist() == [[21, 22], [-1, -1], [-1, -1], [31, -1]]
    assert table.places[0].tolist() == [0, 1] and table.places[3, 0] == 5
    assert table.owners.tolist() == [0, 0, 0, 1, 2, 3, 3]
    assert table.depths.tolist() == [0, 1, 2, 0, 0, 0, 1]


def test_outputs_end_behind_the_last_accepted_draft():
    drawn = [21, 50, 60, 70, 80, 31, 90]
    logprobs = [TokenLogprobs(i, -1.0, 1) if n < 3 else None for n, i in enumerate(drawn)]
    output = logits_rows(PLAN).outputs(HostTokens(drawn, logprobs, {}), [1, 0, 0, 1])
    assert list(map(list, output.token_ids)) == [[21, 50], [70], [80], [31, 90]]
    assert output.logprobs == [logprobs[:2], None, None, None]


def test_a_failure_counts_if_it_is_reached():
    drawn = [21, 50, 60, 70, 80, 31, 90]
    tokens = HostTokens(drawn, None, {2: "never reached", 4: "at once", 6: "behind one"})
    output = logits_rows(PLAN).outputs(tokens, [1, 0, 0, 1])
    assert list(map(list, output.token_ids)) == [[21, 50], [70], [], [31]]
    assert output.errors == {2: "at once", 3: "behind one"}
    assert output.logprobs is None
