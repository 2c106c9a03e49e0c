"""Target and drafter over one pool of pages, with the batches of the engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from deepinfer_core.kv.layout import KVLayout, make_layout
from deepinfer_core.models.interface import history_len_of
from deepinfer_core.ops.table import reference_table
from deepinfer_core.runtime.batch_builder import BatchBuilder
from deepinfer_core.runtime.kv_cache import allocate_pool, layer_caches
from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.scheduling.plan import NO_TOKEN_ID, BlockUpdate, StepPlan
from deepinfer_core.testing.drafting import DraftRunner, load_with_drafter
from deepinfer_core.testing.tiny import TINY_DRAFTERS, write_tiny_checkpoint

NUM_TOKENS = 3
ROW = 1
# Two more tokens fit into the last block: what is chained is cached too.
IDS = torch.randint(3, 275, (37,), generator=torch.Generator().manual_seed(2)).tolist()
CPU = torch.device("cpu")


def block_updates(layout: KVLayout, num_blocks: int) -> list[BlockUpdate]:
    """Pages for the whole prompt, no two groups the same."""
    ids = list(range(1, num_blocks))
    random.Random(0).shuffle(ids)
    counts = [-(-len(IDS) // group.block_size) for group in layout.groups]
    return [
        BlockUpdate(group, ROW, 0, [ids.pop() for _ in range(count)])
        for group, count in enumerate(counts)
    ]


def plans(history_len: int) -> Iterator[tuple[StepPlan, list[int]]]:
    """Two steps, and the tokens behind those of each."""
    padded = [NO_TOKEN_ID] * history_len + IDS
    for start, end in ((0, 30), (30, len(IDS))):
        plan = StepPlan(step_id=start, rows=[ROW], num_computed_tokens=[start])
        plan.num_scheduled_tokens, plan.token_ids = [end - start], IDS[start:end]
        plan.history_token_ids = padded[start : start + history_len]
        yield plan, [*IDS, 77][start + 1 : end + 1]


@pytest.mark.parametrize("name", TINY_DRAFTERS)
def test_drafts_are_the_same(name: str, tmp_path: Path) -> None:
    family, fields = TINY_DRAFTERS[name]
    write_tiny_checkpoint(tmp_path, family, **fields)
    target, drafter = load_with_drafter(tmp_path, reference_table(batch_invariant=True))
    runner = DraftRunner(target, drafter, num_lookahead_tokens=NUM_TOKENS - 1)
    _, expected = runner.propose({0: IDS}, {0: 77}, NUM_TOKENS)

    layout = make_layout([*target.layer_kv(), *drafter.layer_kv()], block_size=8)
    pool = allocate_pool(layout, 128, CPU)
    history_len = history_len_of(target)
    builder = BatchBuilder(
        layout,
        layer_caches(pool, layout, torch.float32),
        TokenPool(ROW + 1),
        max_num_seqs=ROW + 1,
        device=CPU,
    )
    builder.update_blocks(block_updates(layout, 128))
    for plan, next_ids in plans(history_len):
        batch = builder.build(plan).batch
        _, features = target.forward_with_features(batch)
        shown = torch.tensor(next_ids, dtype=torch.int32)
        observed = drafter.observe(target, batch, features, shown)
    last_tokens = batch.attention.groups[0].cu_seqlens_q[1:].long() - 1
    drafts = drafter.draft(target, batch, observed, last_tokens, NUM_TOKENS)
    assert torch.equal(drafts.logits, expected[0].logits)
