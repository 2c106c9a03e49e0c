"""Decoding with drafts, by hand: the tokens of the plain run, and drafts as if nothing had been
rejected on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deepinfer_core.models.drafters.interface import Draw
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.drafting import DraftRunner, load_with_drafter
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import TINY_DRAFTERS, write_tiny_checkpoint
from torch import Tensor

PROMPT = torch.randint(3, 275, (27,), generator=torch.Generator().manual_seed(4)).tolist()
NUM_TOKENS = 16
NUM_DRAFTS = 3


def good_drafts(plain: list[int], place: int, count: int) -> Draw:
    """Draw what the plain run has from `place` on, `count` times, and then something else."""

    def draw(logits: Tensor, index: int) -> Tensor:
        token = plain[place + index] if place + index < len(plain) else 5
        return torch.tensor([token if index < count else (token + 1) % 275], dtype=torch.int32)

    return draw


@pytest.mark.parametrize("name", TINY_DRAFTERS)
def test_drafts_change_no_token(name: str, tmp_path: Path) -> None:
    family, fields = TINY_DRAFTERS[name]
    write_tiny_checkpoint(tmp_path, family, **fields)
    target, drafter = load_with_drafter(tmp_path, reference_table(batch_invariant=True))
    plain = HandRunner(target).greedy(PROMPT, NUM_TOKENS)
    runner = DraftRunner(target, drafter, num_lookahead_tokens=NUM_DRAFTS)

    output: list[int] = []
    chunk, drafted, num_accepted = PROMPT, [], []
    while len(output) < NUM_TOKENS:
        batch = runner.next_batch({0: chunk})
        hidden_states, features = target.forward_with_features(batch)
        drawn = target.compute_logits(hidden_states[-1 - len(drafted) :]).argmax(dim=1).tolist()
        accepted = next((i for i, d in enumerate(drafted) if d != drawn[i]), len(drafted))
        output += drawn[: accepted + 1]
        num_accepted.append(accepted)
        # Behind each token of the chunk stands the next, or what was drawn instead of it.
        next_ids = torch.tensor([*chunk[1 : len(chunk) - len(drafted)], *drawn]).int()
        observed = drafter.observe(target, batch, features, next_ids)
        runner.lengths[0] -= len(drafted) - accepted
        rows = torch.tensor([len(chunk) - 1 - len(drafted) + accepted])
        draw = good_drafts(plain, len(output), len(num_accepted) % (NUM_DRAFTS + 1))
        drafts = drafter.draft(target, batch, observed, rows, NUM_DRAFTS, draw)
        drafted = drafts.token_ids[0].tolist()
        chunk = [output[-1], *drafted]

    assert output[:NUM_TOKENS] == plain
    assert set(num_accepted) == set(range(NUM_DRAFTS + 1))
    ids, next_id = PROMPT + output[:-1], output[-1]
    fresh = DraftRunner(target, drafter, num_lookahead_tokens=NUM_DRAFTS)
    _, expected = fresh.propose({0: ids}, {0: next_id}, NUM_DRAFTS, draw=draw)
    assert torch.equal(drafts.logits, expected[0].logits)
