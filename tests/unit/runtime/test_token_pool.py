"""The ring: what is written can be read, over its length, through growth, for each row alone."""

import random

import pytest
import torch
from deepinfer_core.runtime.token_pool import MAX_IN_FLIGHT_TOKENS, MIN_RING_LEN, TokenPool


def write(pool, rows, positions, token_ids):
    pool.write(pool.places(rows, positions), torch.tensor(token_ids, dtype=torch.int32))


def read(pool, row, positions):
    return pool.read(pool.places(torch.tensor(row), torch.tensor(positions))).tolist()


@pytest.mark.parametrize("prompt_len", [1, 63, 64, 65, 200])
def test_a_started_row_holds_the_end_of_its_prompt(prompt_len):
    pool = TokenPool(3)
    pool.start_row(1, list(range(1000, 1000 + prompt_len)))
    positions = list(range(max(0, prompt_len - MIN_RING_LEN), prompt_len))
    assert read(pool, 1, positions) == [1000 + p for p in positions]


def test_rows_come_in_any_order_and_shape():
    pool = TokenPool(4)
    rows, positions = torch.tensor([2, 0, 3]), torch.tensor([5, 64, 130])
    write(pool, rows, positions, [50, 51, 52])
    found = pool.read(pool.places(rows.flip(0), positions.flip(0)))
    assert found.tolist() == [52, 51, 50]
    assert found.dtype == torch.int32
    places = pool.places(rows[:, None], positions[:, None] - torch.arange(2))
    assert pool.read(places)[:, 0].tolist() == [50, 51, 52]
    on_the_host = pool.places(rows.numpy(), positions.numpy())
    assert on_the_host.tolist() == places[:, 0].tolist()


def test_rows_follow_their_own_text_through_random_steps_and_growth():
    choose = random.Random(0)
    pool = TokenPool(4)
    texts = {}
    for _ in range(600):
        row = choose.randrange(4)
        if row not in texts or choose.random() < 0.02:
            texts[row] = [choose.randrange(10**6) for _ in range(choose.randrange(1, 300))]
            pool.start_row(row, texts[row], history_len=choose.choice([0, 0, 40, 100, 130]))
        else:
            texts[row].append(choose.randrange(10**6))
            write(pool, torch.tensor([row]), torch.tensor([len(texts[row]) - 1]), texts[row][-1:])
        for other, text in texts.items():
            positions = list(range(max(0, len(text) - MIN_RING_LEN), len(text)))
            assert read(pool, other, positions) == [text[p] for p in positions]


def test_history_grows_for_the_row_that_needs_it():
    pool = TokenPool(2)
    assert pool.max_history == MIN_RING_LEN - MAX_IN_FLIGHT_TOKENS
    pool.start_row(0, list(range(500)), history_len=200)
    assert pool.max_history >= 200
    positions = list(range(300, 500))
    assert read(pool, 0, positions) == positions


def test_growth_keeps_what_a_step_in_flight_is_about_to_read():
    pool = TokenPool(2)
    pool.start_row(0, [7] * 70)
    write(pool, torch.tensor([0]), torch.tensor([70]), [9])
    pool.start_row(1, [1], history_len=400)
    assert read(pool, 0, [68, 69, 70]) == [7, 7, 9]
    write(pool, torch.tensor([0]), torch.tensor([71]), [10])
    assert read(pool, 0, [69, 70, 71]) == [7, 9, 10]


def test_positions_before_the_text_do_not_fail():
    pool = TokenPool(1)
    pool.start_row(0, [1])
    assert len(read(pool, 0, [-1, -100])) == 2
