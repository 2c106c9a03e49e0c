"""A request that lost its row to a more urgent one answers as if it had not."""

import pytest
from deepinfer_core.sampling_params import SamplingParams

STYLES = [
    {"temperature": 0, "frequency_penalty": 1.5, "repetition_penalty": 1.3, "logprobs": 1},
    {"seed": 3, "presence_penalty": 1.0, "min_tokens": 20, "bad_words": ["a", "th"]},
    {"seed": 4, "n": 2, "top_k": 20, "prompt_logprobs": 0},
]


def answers(requests):
    return [(r.output_token_ids, r.logprobs, r.prompt_logprobs) for r in requests]


def run(engine):
    while engine.has_unfinished:
        engine.advance()
    engine.check_integrity()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("style", STYLES, ids=["penalties", "words", "samples"])
def test_state_of_a_row_comes_back_with_its_request(make_engine, style, overlap):
    params = SamplingParams(max_tokens=24, ignore_eos=True, **style)
    prompt = [5, 9, 3, 20, 8, 44, 9]
    plain = make_engine(overlap=False, prefix_caching=False)
    wanted = plain.add(prompt, params)
    run(plain)

    engine = make_engine(overlap=overlap, policy="priority", max_num_seqs=2)
    lazy = engine.add(prompt, params, priority=5)
    for turn in range(40):
        if turn % 9 == 4:
            engine.add([7, turn], SamplingParams(max_tokens=3, temperature=0), priority=1)
            engine.add([8, turn], SamplingParams(max_tokens=2, seed=1), priority=2)
        engine.advance()
    run(engine)
    assert engine.metrics()["num_preemptions"] >= 2
    assert answers(lazy) == answers(wanted)
