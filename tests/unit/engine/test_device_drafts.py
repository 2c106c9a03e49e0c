"""Drafters on the device: whatever they guess, answers are those of the plain run."""

import json
import logging
from dataclasses import replace

import pytest
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.engine_setup import load_model
from deepinfer_core.errors import ConfigError
from deepinfer_core.models.drafters.draft_model import DraftModel
from deepinfer_core.models.drafters.interface import Drafts
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.speculative.budget import DraftCosts, StepCosts
from deepinfer_core.testing.tiny import TINY_DRAFTERS, write_tiny_checkpoint

from .drafted import PROMPTS, STAGES, add_all, run

HOST = PluginHost(load_entry_points=False)
LEAST = 0.7
"""Share of a twin's drafts that are accepted: biases and penalties are those of the target, other
stages and penalties of drafts are not the drafter's business."""


class Twin(DraftModel):
    """The target's own weights as its draft model; `change` makes of its drafts what is given."""

    def __init__(self, loaded, change=lambda ids: ids):
        model = loaded.model
        super().__init__(model, vocab_size=model.vocab_size, first_cache=len(model.layer_kv()))
        self.change = change

    def draft(self, *args):
        drafts = super().draft(*args)
        return Drafts(self.change(drafts.token_ids), drafts.logits, drafts.confidence)


def mix(ids):
    """Every third draft is another token."""
    return torch.where(torch.arange(ids.numel()).view(ids.shape) % 3 == 2, (ids + 1) % 256, ids)


def fail(ids):
    raise RuntimeError("a bug")


FAULTS = {
    "right": lambda ids: ids,
    "wrong": lambda ids: (ids + 1) % 256,
    "mixed": mix,
    "unknown ids": lambda ids: torch.where(ids % 2 == 0, ids, ids + 10**6),
    "negative ids": lambda ids: -ids - 1,
    "special": torch.zeros_like,
    "too few": lambda ids: ids[:, :1],
    "too many": lambda ids: torch.cat((ids, ids), dim=1),
    "too few rows": lambda ids: ids[1:],
    "fails": fail,
}


@pytest.fixture(scope="module")
def plain(make_engine):
    engine = make_engine(STAGES, overlap=False, max_num_seqs=1, prefix_caching=False)
    return run(engine, add_all(engine))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_drafter_changes_an_answer(make_engine, plain, fault, overlap):
    twin = Twin(make_engine.loaded, FAULTS[fault])
    fields = {"overlap": overlap, "num_drafts": 5, "max_num_seqs": 6}
    engine = make_engine(STAGES, drafter=twin, **fields)
    assert run(engine, add_all(engine)) == plain
    metrics = engine.metrics()
    accepted, drafted = metrics["num_accepted_tokens"], metrics["num_draft_tokens"]
    assert (drafted > 0) == (fault not in ("fails", "negative ids", "too few rows"))
    if fault == "right":
        assert accepted > LEAST * drafted
        assert metrics["num_steps"] < 60
    if fault in ("mixed", "unknown ids", "too few", "too many"):
        assert 0 < accepted < drafted


@pytest.mark.parametrize(
    "style",
    [
        {"temperature": 0, "allowed_token_ids": [5, 6, 7, 8]},
        {"seed": 1, "logit_bias": {9: 3.0, 40: 2.0}, "top_k": 9},
        {"seed": 2, "temperature": 0.7, "allowed_token_ids": list(range(3, 90)), "min_p": 0.02},
    ],
)
def test_drafts_are_drawn_as_the_target_draws(make_engine, style):
    """Biases, allowed ids, temperature, truncation and noise: the twin is never wrong."""
    engine = make_engine(drafter=Twin(make_engine.loaded), num_drafts=4, overlap=False)
    requests = engine.add(PROMPTS[2], SamplingParams(max_tokens=20, ignore_eos=True, **style))
    run(engine, requests)
    metrics = engine.metrics()
    assert metrics["num_accepted_tokens"] == metrics["num_draft_tokens"] > 10


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 4, 6, 8])
def test_every_depth_in_small_chunks_and_with_little_room(make_engine, plain, num_drafts):
    twin = Twin(make_engine.loaded, mix)
    fields = {"max_num_seqs": 4, "num_drafts": num_drafts, "max_num_batched_tokens": 13}
    engine = make_engine(STAGES, drafter=twin, block_size=4, num_blocks=20, **fields)
    assert run(engine, add_all(engine)) == plain
    assert engine.metrics()["num_preemptions"] > 0
    assert all(engine.metrics()["accepted_by_position"][: min(num_drafts, 2)])


def test_a_prefix_hit_keeps_what_the_drafter_knows(make_engine):
    """What is cached is the drafter's too: behind a hit it is right as ever."""
    engine = make_engine(drafter=Twin(make_engine.loaded), num_drafts=4, block_size=4)
    params = SamplingParams(temperature=0, max_tokens=12)
    shares = []
    for _ in range(2):
        (request,) = engine.add(PROMPTS[0], params)
        run(engine, [request])
        shares.append((sum(request.drafts.accepted), sum(request.drafts.drafted)))
    assert request.num_cached_tokens > 0
    assert shares[0] == shares[1]
    assert shares[0][0] == shares[0][1] >= 8


@pytest.mark.parametrize("when", range(1, 8))
@pytest.mark.parametrize("overlap", [False, True])
def test_an_abort_between_any_two_steps_hurts_nobody(make_engine, plain, when, overlap):
    twin = Twin(make_engine.loaded, mix)
    engine = make_engine(STAGES, drafter=twin, overlap=overlap, num_drafts=3)
    requests = add_all(engine)
    for _ in range(when):
        engine.advance()
    victim = requests[when % len(requests)]
    engine.abort(victim)
    for request, found, expected in zip(requests, run(engine, requests), plain, strict=True):
        if request is not victim:
            assert found == expected


def test_a_drafter_that_fails_is_not_asked_again(make_engine, caplog):
    engine = make_engine(STAGES, drafter=Twin(make_engine.loaded, fail))
    with caplog.at_level(logging.WARNING):
        run(engine, add_all(engine))
    assert caplog.text.count("goes on without drafts") == 1


@pytest.mark.parametrize("name", TINY_DRAFTERS)
def test_drafters_of_checkpoints(name, tmp_path):
    family, fields = TINY_DRAFTERS[name]
    write_tiny_checkpoint(tmp_path, family, **fields)
    options = {"dtype": "float32", "batch_invariant": True, "num_blocks": 100, "num_drafts": 3}
    options["draft_guard"] = False
    proposer = name.partition("_")[0]
    config = EngineConfig.from_flat(str(tmp_path), proposer=proposer, **options)
    loaded = load_model(config, HOST)
    answers = []
    for engine in (
        Engine.from_loaded(
            EngineConfig.from_flat(str(tmp_path), **options), replace(loaded, drafter=None)
        ),
        Engine.from_loaded(config, loaded),
    ):
        requests = [
            request
            for seed, prompt in enumerate(PROMPTS[:3])
            for request in engine.add(prompt, SamplingParams(max_tokens=8, seed=seed, n=2))
        ]
        answers.append(run(engine, requests))
    assert answers[0] == answers[1]
    metrics = engine.metrics()
    assert metrics["num_draft_tokens"] > 20
    assert metrics["num_accepted_tokens"] > 0  # the target's noise is the drafter's


def test_the_guard_ends_drafts_that_cost_more_than_they_give(make_engine):
    """Costs are made up: a draft takes as long as five steps."""
    params = SamplingParams(temperature=0, max_tokens=30)
    found = {}
    for seconds in (1e-4, 5e-3):
        engine = make_engine(drafter=Twin(make_engine.loaded), num_drafts=4)
        drafts = engine.scheduler._drafts
        drafts._costs = StepCosts((1, 100), (1e-3, 1.1e-3))
        drafts._draft_costs = DraftCosts(0.0, seconds, seconds)
        (request,) = engine.add(PROMPTS[0], params)
        run(engine, [request])
        found[seconds] = engine.metrics()
        assert request.drafts.num_turned_off == found[seconds]["num_drafting_off"]
    assert found[1e-4]["num_drafting_off"] == 0 and found[5e-3]["num_drafting_off"] == 1
    assert found[1e-4]["num_steps"] < 12 < 20 < found[5e-3]["num_steps"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"proposer": "mtp"}, "speculative.proposer"),
        ({"proposer": "dspark"}, "speculative.proposer"),
        ({"proposer": "draft_model"}, "speculative.draft_model"),
    ],
)
def test_a_model_without_such_a_drafter_says_so(model_dir, fields, field):
    with pytest.raises(ConfigError) as caught:
        Engine.from_config(EngineConfig.from_flat(str(model_dir), **fields), HOST)
    assert caught.value.field == field


def test_a_draft_model_from_a_directory_and_one_with_other_tokens(model_dir, tmp_path):
    other = write_tiny_checkpoint(tmp_path / "other", "qwen3", seed=3)
    fields = {"dtype": "float32", "num_blocks": 50, "proposer": "draft_model"}
    config = EngineConfig.from_flat(str(model_dir), draft_model=str(other), **fields)
    engine = Engine.from_config(config, HOST)
    run(engine, engine.add(PROMPTS[0], SamplingParams(temperature=0, max_tokens=6)))
    assert engine.metrics()["num_proposed_tokens"] > 0
    file = other / "tokenizer.json"
    fields = json.loads(file.read_text())
    vocabulary = fields["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match="another tokenizer"):
        Engine.from_config(config, HOST)
