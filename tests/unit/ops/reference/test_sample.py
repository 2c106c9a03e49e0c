"""Edges of the sampling references; their maths is tested through the sampler."""

import pytest
import torch
from deepinfer_core.ops.reference.sample import draw, logprobs, mask, penalties, stages
from deepinfer_core.sampling.stages import pack_bitmask

INF = float("inf")


@pytest.mark.parametrize("vocab_size", [1, 50, 5000])
def test_no_rows(vocab_size):
    logits = torch.zeros(0, vocab_size)
    ints, floats = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    bitmask = torch.zeros(0, -(-vocab_size // 32), dtype=torch.int32)
    assert mask(logits, bitmask).shape == (0, vocab_size)
    untouched = torch.ones(2, vocab_size)
    assert torch.equal(mask(untouched.clone(), bitmask, ints), untouched)
    counts = torch.zeros(1, vocab_size, dtype=torch.int32)
    assert penalties(logits, counts.bool(), counts, ints, floats, floats, floats).shape[0] == 0
    assert stages(logits, floats, floats, ints, floats)[0].shape == (0, vocab_size)
    values, ids = stages(logits, floats, floats, ints, floats, max_top_k=5)
    assert values.shape == ids.shape == (0, min(5, vocab_size))
    for keys in ((), (None, ints, ints, ints), (ids, ints, ints, ints)):
        assert draw(values if keys and keys[0] is not None else logits, *keys).shape == (0,)
    assert [t.shape[0] for t in logprobs(logits, ints, 3)] == [0] * 4


def test_a_mask_of_some_rows_leaves_the_others():
    logits = torch.randn(3, 70)
    bitmask = torch.stack([pack_bitmask([0, 69], 70), pack_bitmask([33], 70)])
    result = mask(logits.clone(), bitmask, torch.tensor([2, 0]))
    assert torch.equal(result[1], logits[1])
    for row, allowed in ((2, [0, 69]), (0, [33])):
        assert (result[row] > -INF).nonzero()[:, 0].tolist() == allowed
        assert torch.equal(result[row, allowed], logits[row, allowed])


def test_stages_that_are_off_change_nothing_but_the_temperature():
    logits = torch.randn(2, 300)
    temperature = torch.tensor([0.5, 2.0])
    expected, ids = stages(logits.clone(), temperature)
    assert ids is None
    torch.testing.assert_close(
        expected.softmax(dim=-1), (logits / temperature[:, None]).softmax(dim=-1)
    )
    off = {
        "min_p": torch.zeros(2),
        "top_k": torch.zeros(2, dtype=torch.int64),
        "top_p": torch.ones(2),
    }
    for names in (["min_p"], ["top_k"], ["top_p"], list(off)):
        found, _ = stages(logits.clone(), temperature, **{name: off[name] for name in names})
        assert torch.equal(found, expected)


@pytest.mark.parametrize("vocab_size", [300, 6000])
def test_candidates_are_the_survivors_of_the_whole_vocabulary(vocab_size):
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(5, vocab_size, generator=generator) * 4).round() / 2
    params = {
        "temperature": torch.tensor([0.5, 1.0, 1.0, 2.0, 1.0]),
        "min_p": torch.tensor([0.0, 0.1, 0.0, 0.0, 0.5]),
        "top_k": torch.tensor([1, 30, 7, 20, 30]),
        "top_p": torch.tensor([1.0, 0.5, 1.0, 0.9, 0.7]),
    }
    whole, _ = stages(logits.clone(), **params)
    values, ids = stages(logits.clone(), **params, max_top_k=30)
    assert torch.equal(torch.full_like(whole, -INF).scatter(1, ids, values), whole)
