"""Thousands of random schedules; see fake_runner.py for what is checked in each step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from deepinfer_core.kv.layout import KVLayout, LayerKV, make_layout
from deepinfer_core.request import Request
from deepinfer_core.scheduling.plan import StepPlan

FULL = LayerKV("full", 1, 1, 1)


def window(size: int) -> LayerKV:
    return LayerKV("window", 1, 1, 1, size)


def unneeded(size: int) -> LayerKV:
    return LayerKV("window", 1, 1, 1, size, needed_by_hits=False)


def num_accepted(request: Request) -> int:
    return sum(request.drafts.accepted) if request.drafts else 0


def replayed(*sizes: int, block_size: int) -> KVLayout:
    windows = [LayerKV("window", 1, 1, 1, size, allows_replay=True) for size in sizes]
    return make_layout([FULL, FULL, *windows], block_size=block_size, bounded_replay=True)


LAYOUTS = [
    make_layout([FULL], block_size=1),
    make_layout([FULL], block_size=4),
    make_layout([window(5)], block_size=4),
    make_layout([FULL, window(6)], block_size=4),
    make_layout([FULL, window(8), window(8)], block_size=2),
    make_layout([FULL, FULL, window(1), window(3)], block_size=3),
    make_layout([FULL, FULL, window(5), unneeded(2), unneeded(4)], block_size=4),
    replayed(3, block_size=2),
    replayed(8, 2, block_size=4),
    replayed(6, block_size=4),
]
BATCHES, SCHEDULES_PER_BATCH = 24, 100


def draw_layout(rng: random.Random) -> KVLayout:
    return rng.choice(LAYOUTS)


def draw_request(rng: random.Random, bases: list[list[int]], priorities: bool) -> dict[str, Any]:
    base = rng.choice(bases)
    prompt = base[: rng.randint(1, len(base))]
    if rng.random() < 0.3:
        prompt = [*prompt, *(rng.randrange(20) for _ in range(rng.randint(1, 6)))]
    return {
        "prompt": prompt,
        "max_tokens": rng.choice([1, 2, 5, 12]),
        "n": rng.choice([1, 1, 1, 1, 2, 3, 5]),
        "priority": rng.randrange(3) if priorities else 0,
        "seed": rng.randrange(5),
        "stop_token_ids": frozenset(rng.choice([(), (0,), (0, 1)])),
        "stop": ("pair",) if rng.random() < 0.3 else (),
        "bad_words": ("x",) if rng.random() < 0.3 else (),
        "logprobs": 0 if rng.random() < 0.2 else None,
        "prompt_logprobs": 0 if rng.random() < 0.15 else None,
    }


def draw_memory(rng: random.Random) -> Callable[[StepPlan], bool]:
    """Enough, or enough for some tokens, or at times not enough for any step but the smallest."""
    num_tokens = rng.choice([1, 2, 5])
    kinds: list[Callable[[StepPlan], bool]] = [
        lambda plan: True,
        lambda plan: len(plan.token_ids) <= num_tokens,
        lambda plan: len(plan.token_ids) == 1 == len(plan.sample_rows) or rng.random() < 0.8,
    ]
    return rng.choice(kinds)


def disturb(harness: Any, rng: random.Random) -> None:
    """One of the things that can happen between two steps."""
    live = [request for request in harness.requests if not request.is_finished]
    kind = rng.random()
    if kind < 0.3 and live:
        harness.scheduler.abort(rng.choice(live))
    elif kind < 0.6 and live:
        harness.scheduler.preempt(rng.choice(live))
    elif kind < 0.7:
        harness.scheduler.preempt_all()
    elif kind < 0.8:
        harness.scheduler.reset_prefix_cache()
    elif kind < 0.9 and harness.finished:
        harness.scheduler.abort(rng.choice(harness.finished))
    elif harness.flights:
        harness.commit()
    harness.scheduler.check_integrity()


def run_schedule(harness_type: type, seed: int) -> Any:
    rng = random.Random(seed)
    policy = rng.choice(["fcfs", "priority"])
    layout = draw_layout(rng)
    harness = harness_type(
        layout,
        num_blocks=rng.choice([4, 8, 12, 20, 60])
        * len(layout.groups)
        * (16 if layout.hit_granularity == 1 else 4)
        // 4,
        max_num_seqs=rng.choice([1, 2, 4, 7]),
        max_num_batched_tokens=rng.choice([1, 3, 8, 30]),
        policy=policy,
        prefix_caching=rng.random() < 0.8,
        depth=rng.choice([0, 1, 1, 2]),
        fits=draw_memory(rng),
        num_drafts=rng.choice([0, 1, 2, 5, 8]),
    )
    bases = [[rng.randrange(20) for _ in range(rng.choice([4, 8, 16, 24]))] for _ in range(2)]
    arrivals = [draw_request(rng, bases, policy == "priority") for _ in range(rng.randint(1, 8))]
    calm = rng.random() < 0.3
    haste = rng.choice([0.5, 0.5, 0.15])
    while arrivals:
        while arrivals and rng.random() < haste:
            harness.add(**arrivals.pop())
        harness.step()
        if not calm and rng.random() < 0.25:
            disturb(harness, rng)
    for _ in range(rng.randint(0, 15)):
        harness.step()
        if not calm and rng.random() < 0.25:
            disturb(harness, rng)
    harness.run()
    harness.check_answers()
    return harness


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_schedules_answer_like_the_plain_run(harness: type, batch: int) -> None:
    totals = dict.fromkeys(
        ("hits", "replays", "preemptions", "copies", "voids", "failed", "ousted", "drafts"), 0
    )
    for seed in range(batch * SCHEDULES_PER_BATCH, (batch + 1) * SCHEDULES_PER_BATCH):
        try:
            done = run_schedule(harness, seed)
        except Exception as error:
            error.add_note(f"schedule seed {seed}")
            raise
        totals["hits"] += done.kv.stats().num_hit_tokens
        totals["replays"] += sum(len(plan.replays) for plan in done.plans)
        totals["preemptions"] += sum(r.num_preemptions for r in done.requests)
        totals["copies"] += sum(len(plan.block_copies) for plan in done.plans)
        totals["ousted"] += done.num_ousted
        totals["failed"] += done.num_failed_steps
        totals["drafts"] += sum(num_accepted(r) for r in done.requests)
        totals["voids"] += sum(len(plan.sample_rows) for plan in done.plans) - sum(
            r.num_output_tokens - num_accepted(r) for r in done.requests
        )
    # A schedule proves nothing about what never happened in it.
    assert totals.pop("ousted") > 5 and totals.pop("replays") > 20
    assert all(count > 50 for count in totals.values()), totals
