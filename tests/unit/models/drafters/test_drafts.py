"""What a drafter drafts, bit by bit, must not depend on how it came to where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deepinfer_core.errors import ConfigError
from deepinfer_core.models.drafters.interface import Drafts
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.drafting import DraftRunner, load_with_drafter
from deepinfer_core.testing.tiny import TINY_DRAFTERS, write_tiny_checkpoint
from torch import Tensor

NUM_TOKENS = 3
IDS = torch.randint(3, 275, (41,), generator=torch.Generator().manual_seed(0)).tolist()
NEXT = 77
DSPARK = [name for name in TINY_DRAFTERS if name.startswith("dspark")]


class Loaded:
    def __init__(self, directory: Path, name: str, dtype: str) -> None:
        family, fields = TINY_DRAFTERS[name]
        write_tiny_checkpoint(directory, family, **fields)
        ops = reference_table(batch_invariant=True)
        self.name = name
        self._expected: dict[int, Drafts] = {}
        self.target, self.drafter = load_with_drafter(directory, ops, dtype=dtype)

    def runner(self, *, num_lookahead_tokens: int = NUM_TOKENS - 1) -> DraftRunner:
        return DraftRunner(
            self.target, self.drafter, num_lookahead_tokens=num_lookahead_tokens, num_blocks=32
        )

    def expected(self) -> Drafts:
        """Behind all of the prompt, taken in at once."""
        if not self._expected:
            _, self._expected = self.runner().propose({0: IDS}, {0: NEXT}, NUM_TOKENS)
        return self._expected[0]


@pytest.fixture(scope="module", params=TINY_DRAFTERS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return Loaded(tmp_path_factory.mktemp("tiny"), request.param, "float32")


def assert_same(found: Drafts, expected: Drafts) -> None:
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.logits, expected.logits)
    if expected.confidence is None:
        assert found.confidence is None
    else:
        assert torch.equal(found.confidence, expected.confidence)


def feed_in_chunks(loaded: Loaded, sizes: list[int]) -> Drafts:
    runner, start = loaded.runner(), 0
    for size in sizes:
        following = [*IDS, NEXT][start + size]
        _, drafts = runner.propose({0: IDS[start : start + size]}, {0: following}, NUM_TOKENS)
        start += size
    assert start == len(IDS)
    return drafts[0]


@pytest.mark.parametrize("sizes", [[1, 2, 14, 20, 3, 1], [24, 17]])
def test_chunks_of_any_size(loaded: Loaded, sizes: list[int]) -> None:
    assert_same(feed_in_chunks(loaded, sizes), loaded.expected())


@pytest.mark.parametrize("name", TINY_DRAFTERS)
def test_chunks_in_bfloat16(name: str, tmp_path: Path) -> None:
    loaded = Loaded(tmp_path, name, "bfloat16")
    assert_same(feed_in_chunks(loaded, [30, 1, 10]), loaded.expected())


def test_several_requests_at_once(loaded: Loaded) -> None:
    runner = loaded.runner()
    runner.propose({1: IDS[:9], 0: IDS[:30]}, {1: 5, 0: IDS[30]}, NUM_TOKENS)
    chunks = {0: IDS[30:], 2: IDS[:1], 1: [5, 6, 7]}
    _, drafts = runner.propose(chunks, dict.fromkeys(chunks, NEXT), NUM_TOKENS)
    assert_same(drafts[0], loaded.expected())
    for key, ids in ((1, [*IDS[:9], 5, 6, 7]), (2, IDS[:1])):
        _, alone = loaded.runner().propose({0: ids}, {0: NEXT}, NUM_TOKENS)
        assert_same(drafts[key], alone[0])


def test_rejected_tokens_leave_no_trace(loaded: Loaded) -> None:
    """On both sides of the border of a block."""
    runner = loaded.runner()
    runner.propose({0: IDS[:29]}, {0: IDS[29]}, NUM_TOKENS)
    for start in range(29, len(IDS), 3):
        wrong = [200 + start, 201, 202]
        chunk = [*IDS[start : start + 3], *wrong]
        following = [*IDS, NEXT][min(start + 3, len(IDS))]
        _, drafts = runner.propose({0: chunk}, {0: following}, NUM_TOKENS, num_rejected=len(wrong))
    assert_same(drafts[0], loaded.expected())


def test_fewer_drafts_are_the_first_ones(loaded: Loaded) -> None:
    expected = loaded.expected()
    _, drafts = loaded.runner().propose({0: IDS}, {0: NEXT}, 1)
    assert torch.equal(drafts[0].logits, expected.logits[:, :1])


def test_each_draft_depends_on_the_one_drawn_before_it(loaded: Loaded) -> None:
    def second_best(logits: Tensor, index: int) -> Tensor:
        assert logits.dtype == torch.float32
        return logits.topk(2, dim=1).indices[:, 1 if index == 0 else 0].int()

    _, drafts = loaded.runner().propose({0: IDS}, {0: NEXT}, 2, draw=second_best)
    expected = loaded.expected()
    assert torch.equal(drafts[0].logits[:, 0], expected.logits[:, 0])
    assert drafts[0].token_ids[0, 0] == expected.logits[0, 0].topk(2).indices[1]
    assert not torch.equal(drafts[0].logits[:, 1], expected.logits[:, 1])
    assert drafts[0].token_ids[0, 1] == drafts[0].logits[0, 1].argmax()


def test_the_token_that_was_just_drawn_matters(loaded: Loaded) -> None:
    _, drafts = loaded.runner().propose({0: IDS}, {0: NEXT + 1}, 1)
    assert not torch.equal(drafts[0].logits, loaded.expected().logits[:, :1])


@pytest.mark.parametrize("loaded", DSPARK, indirect=True)
def test_confidence_is_a_probability(loaded: Loaded) -> None:
    confidence = loaded.expected().confidence
    assert confidence.dtype == torch.float32
    assert confidence.shape == (1, NUM_TOKENS)
    assert ((confidence >= 0) & (confidence <= 1)).all()
    assert len(confidence.unique()) == NUM_TOKENS


@pytest.mark.parametrize("loaded", DSPARK, indirect=True)
def test_dspark_reads_a_window_of_features_and_nothing_before(loaded: Loaded) -> None:
    """So a target may leave out what it shows of earlier tokens."""
    runner, window = loaded.runner(), loaded.target.config.window_size
    batch = runner.next_batch({0: IDS})
    _, features = loaded.target.forward_with_features(batch)
    following = torch.tensor([*IDS[1:], NEXT], dtype=torch.int32)
    for num_spoilt, is_same in ((len(IDS) - window, True), (len(IDS) - window + 1, False)):
        shown = features.clone()
        shown[:num_spoilt] = 7.0
        observed = loaded.drafter.observe(loaded.target, batch, shown, following)
        last = torch.tensor([len(IDS) - 1])
        drafts = loaded.drafter.draft(loaded.target, batch, observed, last, NUM_TOKENS)
        assert torch.equal(drafts.logits, loaded.expected().logits) == is_same


def test_so_many_tokens_cannot_be_drafted(loaded: Loaded) -> None:
    with pytest.raises(ConfigError, match=r"at least one|block at once"):
        loaded.runner().propose({0: IDS}, {0: NEXT}, 0)
    if not loaded.name.startswith("mtp"):
        with pytest.raises(ConfigError, match="6 tokens, dspark_block_size is 5"):
            loaded.runner().propose({0: IDS}, {0: NEXT}, 6)


@pytest.mark.parametrize("num_lookahead_tokens", [0, 2])
def test_drafting_writes_only_ahead_and_only_where_there_are_blocks(
    loaded: Loaded, num_lookahead_tokens: int
) -> None:
    """DSpark never writes what it drafts; MTP writes all drafts but the last."""
    runner = loaded.runner(num_lookahead_tokens=num_lookahead_tokens)
    length = runner.block_size
    batch = runner.next_batch({0: (IDS * 4)[:length]})
    _, features = loaded.target.forward_with_features(batch)
    observed = loaded.drafter.observe(loaded.target, batch, features, batch.input_ids)
    before = [cache.k_cache.clone() for cache in runner.caches]
    last = torch.tensor([length - 1])
    loaded.drafter.draft(loaded.target, batch, observed, last, NUM_TOKENS)
    written = [
        (cache.k_cache != old).flatten(2).any(dim=2).nonzero().tolist()
        for cache, old in zip(runner.caches, before, strict=True)
    ]
    own = len(loaded.target.layer_kv())
    assert not any(written[:own])
    for group, places in zip(runner.cache_groups[own:], written[own:], strict=True):
        second = runner.block_tables[group][0][1:]
        assert len(second) == (num_lookahead_tokens > 0)
        is_mtp = loaded.name.startswith("mtp")
        assert places == [[block, place] for block in second for place in range(2 * is_mtp)]
