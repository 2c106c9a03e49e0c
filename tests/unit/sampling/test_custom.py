"""Custom stages: what they see, their order, and that a failure ends only its own requests."""

import pytest
import torch

V = 40
INF = float("inf")


def plus_one_at_five(logits, context):
    logits[:, 5] += 1
    return logits


def negate(logits, context):
    return -logits


def steps(rows, num_steps, seats, logits):
    return [rows.step(logits, seats).token_ids for _ in range(num_steps)]


def test_stages_run_in_the_order_of_each_request(make_rows):
    rows = make_rows(V, custom_stages={"add": plus_one_at_five, "negate": negate})
    logits = torch.zeros(1, V)
    logits[0, 5], logits[0, 7] = -0.25, -0.5
    expected = {("add", "negate"): 7, ("negate", "add"): 5, ("add",): 5, ("negate",): 7, (): 0}
    for seat, (names, _) in enumerate(expected.items()):
        rows.start(seat, temperature=0, logits_stages=names)
    seats = list(range(len(expected)))
    assert rows.step(logits.expand(5, -1), seats).token_ids == list(expected.values())


def test_the_context_shows_each_row_its_own_history(make_rows):
    seen = []

    def look(logits, context):
        seen.append(
            (
                [p.seed for p in context.params],
                [list(ids) for ids in context.prompt_token_ids],
                context.positions.tolist(),
                context.history(4).tolist(),
            )
        )
        return logits

    rows = make_rows(V, custom_stages={"look": look})
    rows.start(2, [1, 2, 3], temperature=0, logits_stages=["look"], seed=1)
    rows.start(0, [9], temperature=0)
    rows.start(1, [8, 8, 8, 7, 6], temperature=0, logits_stages=["look"], seed=2)
    logits = torch.zeros(3, V)
    logits[0, 30], logits[2, 31] = 1.0, 1.0
    steps(rows, 2, [2, 0, 1], logits)
    assert seen[0][1:] == ([[1, 2, 3], [8, 8, 8, 7, 6]], [3, 5], [[-1, 1, 2, 3], [8, 8, 7, 6]])
    assert seen[1][2:] == ([4, 6], [[1, 2, 3, 30], [8, 7, 6, 31]])


def test_history_has_a_limit_that_can_be_asked_for(make_rows):
    limits = []

    def look(logits, context):
        limits.append(context.max_history)
        assert context.history(context.max_history).shape == (1, context.max_history)
        with pytest.raises(ValueError, match=f"{context.max_history} are kept"):
            context.history(context.max_history + 1)
        return logits

    rows = make_rows(V, custom_stages={"look": look})
    rows.start(0, list(range(30)), logits_stages=["look"])
    assert rows.step(torch.zeros(1, V), [0]).errors == {}
    assert limits[0] >= 48


def test_a_stage_that_raises_ends_only_the_rows_it_raises_for(make_rows):
    def fragile(logits, context):
        if any(len(ids) == 3 for ids in context.prompt_token_ids):
            raise RuntimeError("three is too many")
        return plus_one_at_five(logits, context)

    reached = []

    def later(logits, context):
        reached.extend(context.prompt_token_ids)
        return logits

    rows = make_rows(V, custom_stages={"fragile": fragile, "later": later})
    rows.start(0, [1], temperature=0, logits_stages=["fragile"])
    rows.start(1, [1, 2, 3], temperature=0, logits_stages=["fragile", "later"])
    rows.start(2, [1, 2], temperature=0, logits_stages=["fragile"])
    rows.start(3, [1, 2, 3], temperature=0)
    found = rows.step(torch.zeros(4, V), [0, 1, 2, 3])
    assert list(found.errors) == [1]
    assert reached == []
    for part in ("'fragile'", "RuntimeError", "three is too many", "logits_stages"):
        assert part in found.errors[1]
    assert found.token_ids == [5, 0, 5, 0]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "NoneType"),
        (torch.zeros(1, V - 1), "[1, 39]"),
        (torch.zeros(1, V, dtype=torch.float64), "float64"),
    ],
)
def test_a_stage_that_returns_something_else_is_named(make_rows, result, words):
    rows = make_rows(V, custom_stages={"odd": lambda logits, context: result})
    rows.start(0, logits_stages=["odd"])
    message = rows.step(torch.zeros(1, V), [0]).errors[0]
    assert "'odd'" in message
    assert words in message


def test_a_stage_that_forbids_everything_ends_the_row(make_rows):
    rows = make_rows(V, custom_stages={"nothing": lambda logits, context: logits - INF})
    rows.start(0, logits_stages=["nothing"])
    rows.start(1, temperature=0)
    assert list(rows.step(torch.zeros(2, V), [0, 1]).errors) == [0]


def test_custom_stages_come_after_the_penalties_and_before_the_temperature(make_rows):
    seen = []

    def look(logits, context):
        seen.append(logits.clone())
        return logits

    rows = make_rows(V, custom_stages={"look": look})
    rows.start(
        0, [3], temperature=0.5, top_k=2, logits_stages=["look"],
        repetition_penalty=2.0, logit_bias={4: 1.5}, allowed_token_ids=[3, 4, 5],
    )  # fmt: skip
    rows.step(torch.ones(1, V), [0])
    expected = torch.full((1, V), -INF)
    expected[0, 3], expected[0, 4], expected[0, 5] = 0.5, 2.5, 1.0
    assert torch.equal(seen[0], expected)
