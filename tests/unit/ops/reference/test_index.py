"""The indexer's choice: exact among ties, and a query's own whatever is computed beside it."""

import pytest
import torch
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.reference import index

BLOCK_SIZE, RATIO = 32, 4


@pytest.fixture(params=[1, 4], autouse=True)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


class Batch:
    """Requests of (query length, context) over keys of their own."""

    def __init__(self, requests, *, is_exact=False, head_dim=20):
        self.requests = requests
        num_blocks = [-(-context // BLOCK_SIZE) for _, context in requests]
        total, count = sum(num_blocks), sum(length for length, _ in requests)
        order = iter((torch.randperm(total) + 1).tolist())
        self.tables = [torch.tensor([next(order) for _ in range(n)]).int() for n in num_blocks]
        make = self._integers if is_exact else torch.randn
        self.cache = make(total + 1, BLOCK_SIZE // RATIO, head_dim)
        self.q, self.weights = make(count, 3, head_dim), make(count, 3)

    @staticmethod
    def _integers(*shape):
        return torch.randint(-2, 3, shape).float()

    def select(self, top_k, start=0, *, only=None, tail=None, **kwargs):
        """The choice of all, or of the last `tail` queries of request `only`."""
        requests, tables, rows = self.requests, self.tables, slice(None)
        if only is not None:
            first = sum(length for length, _ in requests[:only])
            length, context = requests[only]
            rows = slice(first + length - tail, first + length)
            requests, tables = [(tail, context)], [tables[only]]
        counts = [length for length, _ in requests]
        contexts = [context for _, context in requests]
        meta = AttentionMeta(
            cu_seqlens_q=torch.tensor([0, *counts]).cumsum(0).int(),
            seq_lens=torch.tensor(contexts).int(),
            block_tables=torch.nn.utils.rnn.pad_sequence(tables, batch_first=True),
            slot_mapping=torch.zeros(sum(counts), dtype=torch.int32),
            positions=torch.cat([torch.arange(c - n, c) for n, c in requests]),
            block_size=BLOCK_SIZE,
            query_lens=counts,
            seq_len_bounds=contexts,
        )
        return index.select(
            self.q[rows], self.weights[rows], self.cache, meta, top_k, RATIO, **kwargs
        )

    def sorted_choice(self, top_k):
        """Query by query, with a stable sort."""
        chosen, row = torch.full((len(self.q), top_k), -1), 0
        for (length, context), table in zip(self.requests, self.tables, strict=True):
            per_block = BLOCK_SIZE // RATIO
            slots = (table.long()[:, None] * per_block + torch.arange(per_block)).flatten()
            keys = self.cache.flatten(0, 1)[slots]
            for position in range(context - length, context):
                scores = (self.q[row] @ keys.T).relu().mul(self.weights[row, :, None]).sum(dim=0)
                seen = scores[: (position + 1) // RATIO]
                best = seen.sort(descending=True, stable=True).indices[:top_k]
                chosen[row, : len(best)] = slots[best.sort().values]
                row += 1
        return chosen


REQUESTS = [(1, 3000), (40, 700), (3, 3), (150, 150), (1, 130)]
"""More splits of keys than queries, fewer, and none."""


@pytest.mark.parametrize("scratch", [1, 2000, 2**20])
def test_the_lower_row_wins_among_equals(monkeypatch, scratch):
    monkeypatch.setattr(index, "SCRATCH", scratch)
    monkeypatch.setattr(index, "STRETCH", 2 * index.SPLIT)
    batch = Batch(REQUESTS, is_exact=True)
    for top_k in (1, 6, 40):
        assert torch.equal(batch.select(top_k), batch.sorted_choice(top_k).int())


def test_zeros_of_both_signs_are_equal():
    ranks = index._ranks(torch.tensor([[-0.0, 0.0, -1.0, float("-inf"), 2.0]]))
    assert ranks.argsort(dim=1, descending=True).tolist() == [[4, 0, 1, 2, 3]]


def test_scores_round_alike_in_any_company():
    keys = torch.randn(9 * index.SPLIT, 20)
    q, weights = torch.randn(40, 3, 20), torch.randn(40, 3)
    whole = index._score(q, weights, keys)  # split by split
    for count in (1, 2, 8):  # query by query
        assert torch.equal(index._score(q[:count], weights[:count], keys), whole[:count])
    lone = index._score(q[:1], weights[:1], keys[: index.SPLIT])
    assert torch.equal(lone, whole[:1, : index.SPLIT])


def test_a_choice_does_not_depend_on_the_batch_or_the_chunk():
    batch = Batch(REQUESTS)
    whole, first = batch.select(6), 0
    for request, (length, _) in enumerate(batch.requests):
        for tail in {1, min(2, length), length}:
            alone = batch.select(6, only=request, tail=tail)
            assert torch.equal(alone, whole[first + length - tail : first + length])
        first += length
