"""Faults that users of other engines reported, on a real (tiny) engine; each test names its row."""

import pytest
from deepinfer_core.sampling_params import SamplingParams

BLOCK = 16
TEXT = [(7 * i + i * i) % 250 + 1 for i in range(3 * BLOCK + 2)]


def run(engine):
    while engine.has_unfinished:
        engine.advance()
    engine.check_integrity()


def ask(engine, prompt, **changes):
    fields = {"max_tokens": 6, "ignore_eos": True, "temperature": 0, "logprobs": 2, **changes}
    return engine.add(prompt, SamplingParams(**fields))[0]


def answer(request):
    """Tokens and the very bits of their log-probabilities."""
    return request.output_token_ids, request.logprobs


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 1])
def test_a_warm_answer_has_the_bits_of_the_cold_one(make_engine, length):
    """N6, N7, N8, Y10: the same prompt sent again hit the cache and answered differently.

    At a prefix of exactly one block others corrupted the cache, or had no token left to compute.
    """
    engine = make_engine(block_size=BLOCK)
    cold = ask(engine, TEXT[:length])
    run(engine)
    warm = ask(engine, TEXT[:length])
    run(engine)
    assert cold.num_cached_tokens == 0
    assert warm.num_cached_tokens == (length - 1) // BLOCK * BLOCK
    assert answer(warm) == answer(cold)
    # The output is cached, too, and goes on from a prompt that ends in the middle of it.
    longer = TEXT[:length] + cold.output_token_ids[:4]
    continued = ask(engine, longer, max_tokens=2)
    run(engine)
    assert continued.num_cached_tokens == (length + 3) // BLOCK * BLOCK
    assert answer(continued) == (cold.output_token_ids[4:], cold.logprobs[4:])


@pytest.mark.parametrize("num_others", [1, 3, 7, 15, 16])
def test_company_changes_no_bit(make_engine, num_others):
    """N1, N2: greedy output and its log-probabilities changed with what else was running."""
    engine = make_engine()
    alone = ask(engine, TEXT[:20], max_tokens=10)
    run(engine)
    engine = make_engine(num_blocks=200, max_num_seqs=32)
    for i in range(num_others):
        ask(engine, TEXT[i : i + 2 * i + 1], temperature=1.0, max_tokens=3 + i)
    crowded = ask(engine, TEXT[:20], max_tokens=10)
    run(engine)
    assert answer(crowded) == answer(alone)


def test_a_draw_does_not_depend_on_what_was_served_before(make_engine):
    """N16: one generator for all made a draw depend on the server's history."""
    params = {"temperature": 1.0, "seed": 11, "max_tokens": 12, "logprobs": None}
    fresh = make_engine()
    first = ask(fresh, TEXT[:5], **params)
    run(fresh)
    used = make_engine()
    for i in range(5):
        ask(used, TEXT[i : 2 * i + 1], temperature=1.0, max_tokens=3 + i)
    run(used)
    later = ask(used, TEXT[:5], **params)
    run(used)
    assert later.output_token_ids == first.output_token_ids


@pytest.mark.parametrize("overlap", [False, True])
def test_a_full_pool_never_blocks_those_who_can_go_on(make_engine, overlap):
    """Y6: a head that could not be scheduled blocked what would have freed its room."""
    engine = make_engine(overlap=overlap, num_blocks=9, block_size=4, policy="priority")
    requests = []
    for step in range(1000):
        if step < 8 and step % 2 == 0:  # two fit at first and none of them in the end
            params = SamplingParams(max_tokens=12, ignore_eos=True)
            priority = step % 4 - step  # some more urgent than those that run, some less
            requests += engine.add(TEXT[step : step + 11], params, priority=priority)
        if step > 8 and not engine.has_unfinished:
            break
        engine.advance()
    assert [len(r.output_token_ids) for r in requests] == [12] * 4
    assert engine.metrics()["num_preemptions"] > 0
    engine.check_integrity()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stage_is_told_the_original_prompt_after_a_preemption(make_engine, overlap):
    """Y5: a plugin used the old prompt length after a request was resumed."""
    seen = {}

    def watch(logits, context):
        for i, position in enumerate(context.positions.tolist()):
            length = min(position, context.max_history)
            told = context.history(length)[i].tolist() if length else []
            seen.setdefault(context.params[i].seed, []).append(
                (list(context.prompt_token_ids[i]), position, told)
            )
        return logits

    engine = make_engine({"watch": watch}, overlap=overlap)
    requests = [
        ask(engine, TEXT[i : i + 5 + i], seed=i, logits_stages=("watch",), logprobs=None)
        for i in range(3)
    ]
    step = 0
    while engine.has_unfinished:
        engine.advance()
        step += 1
        if step in (2, 4, 7):
            engine.scheduler.preempt_all()
    assert engine.metrics()["num_preemptions"] > 0
    for request in requests:
        text = request.prompt_token_ids + request.output_token_ids
        notes = seen[request.seed]
        assert {position for _, position, _ in notes} == set(
            range(len(request.prompt_token_ids), len(text))
        )
        for prompt, position, history in notes:
            assert prompt == request.prompt_token_ids
            assert history == text[:position]
