"""The pruned draw is the full one; draws follow the softmax."""

import pytest
import torch
from deepinfer_core.ops.reference.sample import draw
from deepinfer_core.sampling.draw import _may_win, draw_pruned, draw_unpruned
from deepinfer_core.sampling.rng import gumbel, token_noise
from hypothesis import given, settings
from hypothesis import strategies as st

INF = float("inf")


def keys(num_rows, seed):
    generator = torch.Generator().manual_seed(seed)
    seeds = torch.randint(-(2**62), 2**62, (num_rows,), generator=generator)
    return seeds, seeds % 3, torch.arange(num_rows) + seed % 1000


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([1, 3, 64, 65, 500, 4099]),
    st.sampled_from([0.0, 1.0, 4.0, 30.0]), st.sampled_from([0.0, 0.5, 0.999]),
)  # fmt: skip
def test_pruning_changes_nothing(seed, num_rows, vocab_size, scale, masked):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * scale
    logits[torch.rand(num_rows, vocab_size, generator=generator) < masked] = -INF
    inputs = keys(num_rows, seed)
    assert torch.equal(draw_pruned(logits, *inputs), draw_unpruned(logits, *inputs))


def test_pruning_changes_nothing_over_several_tiles():
    logits = torch.randn(2, 150_000, generator=torch.Generator().manual_seed(0))
    inputs = keys(2, 0)
    assert torch.equal(draw_pruned(logits, *inputs), draw_unpruned(logits, *inputs))


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4, 1e8, 1e30])
def test_what_wins_is_never_ruled_out(scale):
    """Rounded scores of all sizes, and words at both ends of their range."""
    generator = torch.Generator().manual_seed(0)
    words = torch.cat(
        [
            torch.randint(0, 2**32, (20_000,), generator=generator),
            2**32 - 1 - torch.arange(20_000),
            torch.arange(20_000),
        ]
    )
    logits = torch.randn(60_000, generator=generator) * scale
    scores = logits + gumbel(words)
    assert _may_win(words, logits, scores).all()
    if scale < 1000:
        noise = gumbel(words)
        lucky = (noise > 3) & (noise < 10)  # where the bound is close
        assert not _may_win(words, logits, scores + 0.1)[lucky].any()


@pytest.mark.parametrize("value", [INF, -INF])
def test_infinite_logits_are_never_ruled_out(value):
    logits = torch.tensor([value])
    assert _may_win(torch.tensor([5]), logits, logits).all()


def test_a_hopeless_token_wins_with_the_luck_it_needs():
    """Noise of 12 happens once in 160,000 tokens; bounds must leave room for it."""
    inputs = keys(1, 0)
    noise = token_noise(*inputs, torch.arange(400_000)[None])[0]
    lucky = int(noise.argmax())
    other = (lucky + 1000) % 400_000
    assert noise[lucky] > 11
    logits = torch.full((1, 400_000), -INF)
    logits[0, other] = 0.0
    for margin, winner in ((0.01, lucky), (-0.01, other)):
        logits[0, lucky] = noise[other] - noise[lucky] + margin
        assert draw_pruned(logits, *inputs).tolist() == [winner]


def test_the_definition(obvious):
    logits = torch.randn(3, 70, generator=torch.Generator().manual_seed(1))
    inputs = keys(3, 5)
    for row in range(3):
        seed, sample, position = (int(values[row]) for values in inputs)
        scores = [
            float(logits[row, token] + torch.tensor(obvious.noise(seed, sample, position, token)))
            for token in range(70)
        ]
        assert draw_pruned(logits, *inputs)[row] == scores.index(max(scores))


def test_ties_go_to_the_lower_id():
    """Logits so large that the noise is rounded away: every score is the same."""
    logits = torch.full((1, 300), 2.0**40)
    assert draw_pruned(logits, *keys(1, 0)).tolist() == [0]
    assert draw_unpruned(logits, *keys(1, 0)).tolist() == [0]
    ids = torch.tensor([[9, 4, 7]])
    assert draw(logits[:, :3], ids, *keys(1, 0)).tolist() == [4]
    assert draw(logits).tolist() == [0]


def test_candidates_draw_what_the_whole_vocabulary_draws():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(20, 200, generator=generator)
    inputs = keys(20, 3)
    ids = torch.stack([torch.randperm(200, generator=generator) for _ in range(20)])
    expected = draw(logits, None, *inputs)
    assert torch.equal(draw(logits.gather(1, ids), ids, *inputs), expected)
    assert expected.dtype == torch.int32


@pytest.mark.parametrize("value", [-INF, float("nan")])
def test_degenerate_rows_give_valid_ids_and_disturb_nobody(value):
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(0))
    inputs = keys(3, 0)
    expected = draw(logits, None, *inputs)
    logits[1] = value
    ids = torch.arange(100).expand(3, -1)
    functions = (draw_pruned(logits, *inputs), draw_unpruned(logits, *inputs))
    for found in (*functions, draw(logits, ids, *inputs)):
        assert 0 <= found[1] < 100
        assert torch.equal(found[[0, 2]], expected[[0, 2]])
    assert 0 <= draw(logits)[1] < 100


def test_the_candidates_of_a_greedy_draw():
    assert draw(torch.tensor([[3.0, 2.0]]), torch.tensor([[17, 4]])).tolist() == [17]


def test_draws_follow_the_softmax(chi_square):
    logits = torch.tensor([2.0, 1.0, 0.0, 0.0, -1.0, -3.0, -INF])
    num_draws = 20_000
    zeros = torch.zeros(num_draws, dtype=torch.int64)
    drawn = draw(logits.expand(num_draws, -1), None, zeros + 7, zeros, torch.arange(num_draws))
    counts = drawn.bincount(minlength=7).tolist()
    assert chi_square(counts, logits.softmax(dim=-1).tolist())
    # The test can tell a wrong distribution.
    assert not chi_square(counts, (logits * 0.9).softmax(dim=-1).tolist())


def test_seeds_and_samples_are_independent_streams(chi_square):
    """Pairs of draws at one position: neighboring seeds and sample indices share nothing."""
    num_draws = 4000
    logits = torch.zeros(num_draws, 3)
    zeros = torch.zeros(num_draws, dtype=torch.int64)
    positions = torch.arange(num_draws)
    streams = [
        draw(logits, None, zeros + seed, zeros + sample, positions)
        for seed, sample in ((0, 0), (1, 0), (0, 1))
    ]
    for other in streams[1:]:
        pairs = (streams[0] * 3 + other).bincount(minlength=9).tolist()
        assert chi_square(pairs, [1 / 9] * 9)
