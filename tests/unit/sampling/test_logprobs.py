"""Log-probabilities against a dense log-softmax; chunks that leave no trace."""

import pytest
import torch
from deepinfer_core.ops.reference.sample import logprobs
from deepinfer_core.sampling.logprobs import prompt_logprobs
from hypothesis import given, settings
from hypothesis import strategies as st

INF = float("inf")


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 4), st.sampled_from([1, 5, 64, 1000, 8192, 8193, 20000]), st.integers(0, 6),
    st.booleans(), st.integers(0, 10**6),
)  # fmt: skip
def test_against_a_dense_log_softmax(num_rows, vocab_size, num_logprobs, masked, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 4
    if seed % 2:
        logits = logits.round()
    if masked:
        logits[:, 1:][torch.rand(num_rows, vocab_size - 1, generator=generator) < 0.7] = -INF
    tokens = torch.randint(vocab_size, (num_rows,), generator=generator)
    chosen, ranks, top_ids, top = logprobs(logits, tokens, num_logprobs)
    dense = logits.double().log_softmax(dim=-1)
    for row in range(num_rows):
        order = sorted(range(vocab_size), key=lambda i: (-float(logits[row, i]), i))
        token = int(tokens[row])
        torch.testing.assert_close(chosen[row].double(), dense[row, token], atol=2e-6, rtol=2e-6)
        assert order.index(token) + 1 == ranks[row]
        best = order[:num_logprobs]
        assert top_ids[row].tolist() == best
        torch.testing.assert_close(top[row].double(), dense[row, best], atol=2e-6, rtol=2e-6)


def test_masked_tokens_and_rows_have_minus_infinity():
    logits = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF]])
    chosen, ranks, _, top = logprobs(logits, torch.tensor([1, 2]), 3)
    assert chosen.tolist() == [-INF, -INF]
    assert ranks.tolist() == [3, 3]
    assert top[0, 2] == -INF
    assert top[1].tolist() == [-INF] * 3


def test_dtypes():
    results = logprobs(torch.randn(2, 9), torch.tensor([1, 2], dtype=torch.int32), 2)
    assert [r.dtype for r in results] == [torch.float32, torch.int32, torch.int32, torch.float32]


class Head:
    """An output projection whose every element is computed alone, as invariant ops do."""

    def __init__(self, vocab_size, hidden_size=8):
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.randn(vocab_size, hidden_size, generator=generator)
        self.shapes = set()

    def __call__(self, hidden, start, stop):
        self.shapes.add((hidden.shape[0], stop - start))
        return (hidden[:, None, :] * self.weight[None, start:stop]).sum(dim=-1)


def run(head, hidden, targets, k, **sizes):
    vocab_size = head.weight.shape[0]
    return prompt_logprobs(hidden, head, vocab_size, targets, k, logprobs_op=logprobs, **sizes)


def inputs(num_tokens, vocab_size):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(num_tokens, 8, generator=generator)
    return hidden, torch.randint(vocab_size, (num_tokens,), generator=generator)


@pytest.mark.parametrize("num_tokens", [1, 4, 7, 9])
def test_a_prompt_against_dense(num_tokens):
    head = Head(301)
    hidden, targets = inputs(num_tokens, 301)
    result = run(head, hidden, targets, 5, rows_per_chunk=4, vocab_chunk=64)
    dense = head(hidden, 0, 301).log_softmax(dim=-1)
    expected = dense.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(result.logprobs, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(result.top_ids.long(), dense.topk(5).indices)
    assert result.ranks.tolist() == ((dense > expected[:, None]).sum(dim=-1) + 1).tolist()


def test_every_call_has_the_same_rows_and_the_bits_do_not_show_the_chunks():
    head = Head(301)
    hidden, targets = inputs(11, 301)
    whole = run(head, hidden, targets, 3, rows_per_chunk=4, vocab_chunk=100)
    assert head.shapes == {(4, 100), (4, 1)}
    for cut in (1, 3, 4, 10):
        parts = [
            run(head, hidden[a:b], targets[a:b], 3, rows_per_chunk=4, vocab_chunk=100)
            for a, b in ((0, cut), (cut, 11))
        ]
        for name in ("logprobs", "ranks", "top_ids", "top_logprobs"):
            joined = torch.cat([getattr(part, name) for part in parts])
            assert torch.equal(joined, getattr(whole, name))


def test_no_prompt_tokens():
    hidden, targets = inputs(0, 301)
    result = run(Head(301), hidden, targets, 3)
    assert result.logprobs.shape == (0,)
    assert result.top_ids.shape == (0, 3)


def test_to_list_cuts_to_what_each_token_wants():
    head = Head(301)
    hidden, targets = inputs(3, 301)
    entries = run(head, hidden, targets, 4).to_host().to_list(targets.tolist(), [4, 0, 2])
    assert [len(entry.top_ids) for entry in entries] == [4, 0, 2]
    assert [len(entry.top_logprobs) for entry in entries] == [4, 0, 2]
    assert [entry.token_id for entry in entries] == targets.tolist()
