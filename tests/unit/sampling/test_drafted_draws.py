"""Draws follow the distribution of all stages, with drafts and without, at every depth.

A tiny model says the same of every position, so what is drawn is known exactly: over a vocabulary
of three, whole sequences are counted. Penalties and bad words make what may follow depend on what
was drawn before, drafts included.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from math import exp

import pytest
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.engine_setup import load_model
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.speculative.ngram import Ngram
from deepinfer_core.speculative.suffix import Suffix
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.verify.rehearsal import Twin

A, B, C = IDS = (65, 66, 67)
BASE = {A: 1.0, B: 0.4, C: -0.2}
PROMPT = [A, B, C, A, A, B, B, A, C, B, A, B]
LENGTH = 3
"""Tokens of the sequences that are counted."""
STYLES = {
    "plain": {},
    "hot, biased": {"temperature": 1.7, "logit_bias": {C: 1.0}},
    "two of three": {"top_k": 2},
    "nucleus": {"temperature": 0.8, "top_p": 0.75},
    "min_p": {"min_p": 0.5},
    "penalties": {
        "frequency_penalty": 0.6,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.3,
    },
}


def probabilities(drawn: tuple[int, ...], style: dict) -> dict[int, float]:
    """What may follow, worked out by hand in the order of the stages."""
    logits = {i: x + style.get("logit_bias", {}).get(i, 0.0) for i, x in BASE.items()}
    for i in logits:
        ratio = style.get("repetition_penalty", 1.0)  # the prompt holds all three
        logits[i] = logits[i] / ratio if logits[i] > 0 else logits[i] * ratio
        logits[i] -= style.get("frequency_penalty", 0.0) * drawn.count(i)
        logits[i] -= style.get("presence_penalty", 0.0) * (i in drawn)
    weights = {i: exp(x / style.get("temperature", 1.0)) for i, x in logits.items()}
    ranked = sorted(weights, key=lambda i: -weights[i])
    ranked = [i for i in ranked if weights[i] >= style.get("min_p", 0.0) * weights[ranked[0]]]
    ranked = ranked[: style.get("top_k", len(ranked))]
    total, kept = sum(weights[i] for i in ranked), []
    for i in ranked:
        if sum(weights[j] for j in kept) >= style.get("top_p", 1.0) * total:
            break
        kept.append(i)
    total = sum(weights[i] for i in kept)
    return {i: weights[i] / total if i in kept else 0.0 for i in IDS}


def sequences(style: dict) -> dict[tuple[int, ...], float]:
    """Every sequence and how likely it is to be drawn first."""
    found = {}
    for sequence in itertools.product(IDS, repeat=LENGTH):
        found[sequence] = 1.0
        for count, token in enumerate(sequence):
            found[sequence] *= probabilities(sequence[:count], style)[token]
    return found


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = write_tiny_checkpoint(tmp_path_factory.mktemp("fixed"), "llama", num_hidden_layers=1)
    loaded = load_model(
        EngineConfig.from_flat(str(path), dtype="float32"), PluginHost(load_entry_points=False)
    )
    row = torch.full((loaded.info.vocab_size,), -30.0)
    row[list(BASE)] = torch.tensor(list(BASE.values()))
    loaded.model.compute_logits = lambda hidden: row.repeat(len(hidden), 1)
    return loaded


def draw(loaded, proposer, num_drafts, style, *, num_requests, num_tokens):
    """What many requests draw, each with a seed of its own, and the engine's numbers."""
    guesses = {
        "none": {},
        "ngram": {"proposer": Ngram()},
        "suffix": {"proposer": Suffix()},
        "twin": {"drafter": Twin(loaded.model, seed=num_drafts)},
    }[proposer]
    config = EngineConfig.from_flat(
        str(loaded.info.path),
        num_blocks=2000,
        draft_guard=False,
        num_drafts=max(1, num_drafts),
        max_num_seqs=100,
        overlap=False,  # drafts from the second token on
    )
    loaded = replace(loaded, proposer=None, drafter=None)
    engine = Engine.from_loaded(config, replace(loaded, **guesses))
    params = {"max_tokens": num_tokens, "allowed_token_ids": list(IDS), **style}
    requests = [
        request
        for seed in range(num_requests // 2)
        for request in engine.add(PROMPT, SamplingParams(seed=seed, n=2, **params))
    ]
    while engine.has_unfinished:
        engine.advance()
    return [request.output_token_ids for request in requests], engine.metrics()


PROPOSERS = ("ngram", "suffix", "twin")


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("proposer", ["none", *PROPOSERS])
def test_sequences_are_as_likely_as_stages_make_them(loaded, chi_square, proposer, name):
    style = STYLES[name]
    drawn, metrics = draw(loaded, proposer, 2, style, num_requests=1000, num_tokens=LENGTH)
    counts, expected = Counter(map(tuple, drawn)), sequences(style)
    assert sum(expected.values()) == pytest.approx(1)
    assert chi_square([counts[s] for s in expected], list(expected.values()))
    assert not chi_square(
        [counts[s] for s in expected], [p if p in (0, 1) else 1 / 27 for p in expected.values()]
    )
    if proposer != "none":
        assert 0 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"]


@pytest.mark.parametrize("num_drafts", range(1, 9))
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_every_depth(loaded, chi_square, proposer, num_drafts):
    """Sequences that begin behind drafts, end behind drafts, or lie across the end of a draft."""
    style = STYLES["hot, biased"]
    length = 4 * LENGTH
    drawn, metrics = draw(loaded, proposer, num_drafts, style, num_requests=200, num_tokens=length)
    counts = Counter(
        tuple(ids[start : start + LENGTH]) for ids in drawn for start in range(0, length, LENGTH)
    )
    expected = sequences(style)
    assert chi_square([counts[s] for s in expected], list(expected.values()))
    assert metrics["num_accepted_tokens"] > 100
    if proposer != "suffix":  # which drafts no more than what was matched
        assert len(metrics["drafted_by_position"]) == num_drafts


def test_depth_changes_no_draw_and_samples_differ(loaded):
    texts = [
        draw(loaded, proposer, depth, {}, num_requests=20, num_tokens=24)[0]
        for proposer, depth in (("none", 0), ("ngram", 3), ("suffix", 8), ("twin", 1), ("twin", 5))
    ]
    assert all(text == texts[0] for text in texts)
    assert all(one != other for one, other in itertools.pairwise(texts[0]))
