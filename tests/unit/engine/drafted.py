"""Prompts and parameters that drafts are tried with, and how they are run to the end."""

import torch
from deepinfer_core.sampling_params import SamplingParams

PROMPTS = [[5, 9, 3, 20, 8] * 4, [7] * 11, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], [9, 8]]
STYLES = [
    {"temperature": 0},
    {"seed": 4, "presence_penalty": 0.7, "frequency_penalty": 0.5, "logprobs": 2},
    {"seed": 5, "n": 3, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0, "prompt_logprobs": 1, "repetition_penalty": 1.4, "logprobs": 0},
    {"seed": 6, "top_k": 7, "min_tokens": 6, "logit_bias": {3: 4.0}, "stop_token_ids": [3]},
    {"seed": 7, "temperature": 0.8, "bad_words": ["ab", "c"], "logprobs": 1},
    # Few tokens and strong penalties: what a draft holds decides what may follow it.
    {"temperature": 0, "allowed_token_ids": [5, 6, 7, 8], "frequency_penalty": 1.5},
    {"seed": 8, "logits_stages": ["avoid_last"], "logprobs_mode": "processed", "logprobs": 3},
]
NUM_TOKENS = 14


def avoid_last(logits, context):
    """Depends on the two tokens before, which may be drafts."""
    return logits.scatter_add_(1, context.history(2).long(), torch.full((len(logits), 2), -3.0))


STAGES = {"avoid_last": avoid_last}


def add_all(engine):
    cases = [(PROMPTS[i % len(PROMPTS)], style) for i, style in enumerate(STYLES)]
    return [
        request
        for ids, style in cases
        for request in engine.add(ids, SamplingParams(max_tokens=NUM_TOKENS, **style))
    ]


def run(engine, requests):
    while engine.has_unfinished:
        engine.advance()
        engine.check_integrity()
    metrics = engine.metrics()
    assert metrics["num_free_blocks"] == metrics["num_blocks"]
    return [
        (r.output_token_ids, r.finish_reason, r.stop_reason, r.logprobs, r.prompt_logprobs)
        for r in requests
    ]
