"""Prompts with images on a tiny DeepSeek-V4.1: whatever happens around one, its tokens stay."""

from __future__ import annotations

import numpy as np
import pytest
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.engine_setup import load_model
from deepinfer_core.errors import PromptTooLongError, RequestError
from deepinfer_core.models.vision.preprocess import prepare_image
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.testing.tiny_v41 import FOUR_LAYERS, TINY_VISION

IMAGE = 319
OPTIONS = {"dtype": "float32", "batch_invariant": True, "max_model_len": 400, "num_blocks": 300}
PROMPTS = {
    "one": ([5, 6, 7, IMAGE, 8, 9, 10, 11, 12], ["a"]),
    "other": ([5, 6, 7, IMAGE, 8, 9, 10, 11, 12], ["b"]),
    "two": ([IMAGE, *range(20, 31), IMAGE, 40], ["a", "b"]),
    "last": ([5, 6, 7, IMAGE], ["b"]),
    "text": ([5, 6, 7, 8, 9, 10, 11, 12], []),
}


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory):
    path = write_tiny_checkpoint(
        tmp_path_factory.mktemp("tiny") / "v41",
        "deepseek_v41",
        vision_config=TINY_VISION,
        **FOUR_LAYERS,
    )
    config = EngineConfig.from_flat(str(path), **OPTIONS)
    loaded = load_model(config, PluginHost(load_entry_points=False))

    def make(**fields):
        config = EngineConfig.from_flat(str(path), **OPTIONS | fields)
        if fields.get("decoder_replay"):  # the model is another one then
            return Engine.from_config(config, PluginHost(load_entry_points=False))
        return Engine.from_loaded(config, loaded)

    return make


@pytest.fixture(scope="module")
def images(make_engine):
    rng = np.random.default_rng(4)
    vision = make_engine().limits.vision
    pixels = {"a": rng.integers(0, 256, (24, 36, 3)), "b": rng.integers(0, 256, (24, 36, 3))}
    return {name: prepare_image(p.astype(np.uint8), vision) for name, p in pixels.items()}


@pytest.fixture(scope="module")
def ask(images):
    def ask(engine, name, **params):
        ids, names = PROMPTS[name]
        fields = {"max_tokens": 6, "ignore_eos": True, "temperature": 0, **params}
        given = [images[n] for n in names]
        return engine.add(ids, SamplingParams(**fields), images=given)

    return ask


def run(engine):
    while engine.has_unfinished:
        engine.advance()
    engine.check_integrity()


@pytest.fixture(scope="module")
def plain(make_engine, ask):
    """Tokens of each prompt alone, step by step, computed whole."""
    outputs = {}
    for name in PROMPTS:
        engine = make_engine(max_num_seqs=1, overlap=False, prefix_caching=False)
        (request,) = ask(engine, name)
        run(engine)
        outputs[name] = request.output_token_ids
    return outputs


def test_the_prompt_grows_by_its_images(make_engine, ask, images):
    (request,) = ask(make_engine(), "two")
    num_tokens = images["a"].num_tokens
    assert num_tokens == 2 * (3 + 1) + 2
    assert request.prompt_token_ids == [
        *[IMAGE] * num_tokens,
        *range(20, 31),
        *[IMAGE] * num_tokens,
        40,
    ]


def test_the_answer_depends_on_the_image(plain):
    assert plain["one"] != plain["other"]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_batch_gives_what_each_prompt_gives_alone(make_engine, ask, plain, overlap):
    engine = make_engine(overlap=overlap)
    requests = {name: ask(engine, name)[0] for name in PROMPTS}
    run(engine)
    assert {name: r.output_token_ids for name, r in requests.items()} == plain


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_may_cut_images(make_engine, ask, plain, chunk):
    engine = make_engine(max_num_batched_tokens=chunk, max_num_seqs=1, prefix_caching=False)
    requests = {name: ask(engine, name)[0] for name in ("one", "two", "last")}
    run(engine)
    assert all(r.output_token_ids == plain[name] for name, r in requests.items())


def test_the_same_images_hit_and_others_do_not(make_engine, ask, plain):
    engine = make_engine(block_size=4)
    for name, num_cached in (("one", 0), ("one", 16), ("other", 0), ("two", 0)):
        (request,) = ask(engine, name)
        run(engine)
        assert request.output_token_ids == plain[name]
        assert (request.num_cached_tokens > 0) == (num_cached > 0)
        assert request.num_cached_tokens <= num_cached


def test_a_hit_may_end_within_an_image(make_engine, ask, plain, images):
    """Two prompts with the same second image; the hit ends where the text before it differs."""
    engine = make_engine(block_size=4)
    ask(engine, "last")
    run(engine)
    (request,) = ask(engine, "last")
    run(engine)
    assert 4 <= request.num_cached_tokens < 3 + images["b"].num_tokens
    assert request.output_token_ids == plain["last"]


@pytest.mark.parametrize("decoder_replay", [False, True])
def test_replayed_tokens_may_be_of_images(make_engine, ask, images, decoder_replay):
    """A hit recomputes the last tokens of the cached prefix, here those of an image."""
    engine = make_engine(block_size=4, bounded_replay=True, decoder_replay=decoder_replay)
    (first,) = ask(engine, "last")
    run(engine)
    (again,) = ask(engine, "last")
    run(engine)
    assert again.num_cached_tokens > 4
    assert again.num_replay_tokens > 0
    (other,) = ask(engine, "one")  # the same three tokens, then another image
    run(engine)
    assert other.num_cached_tokens == 0
    assert other.output_token_ids != first.output_token_ids


@pytest.mark.parametrize("num_steps", [1, 3])
def test_preemption_computes_images_again(make_engine, ask, plain, num_steps):
    engine = make_engine(max_num_batched_tokens=8, prefix_caching=False)
    requests = {name: ask(engine, name)[0] for name in ("one", "two")}
    for _ in range(num_steps):
        engine.advance()
    for request in requests.values():
        engine.scheduler.preempt(request)
    run(engine)
    assert sum(r.num_preemptions for r in requests.values()) > 0
    assert all(r.output_token_ids == plain[name] for name, r in requests.items())


def test_a_request_that_gave_up_its_row_keeps_its_images(make_engine, ask, plain, images):
    engine = make_engine(max_num_seqs=1, policy="priority", prefix_caching=False)
    (late,) = ask(engine, "one")
    for _ in range(3):
        engine.advance()
    ids, names = PROMPTS["other"]
    fields = {"max_tokens": 6, "ignore_eos": True, "temperature": 0}
    given = [images[n] for n in names]
    (urgent,) = engine.add(ids, SamplingParams(**fields), images=given, priority=-1)
    run(engine)
    assert late.num_preemptions == 1
    assert (late.output_token_ids, urgent.output_token_ids) == (plain["one"], plain["other"])


def test_samples_share_the_images_of_their_prompt(make_engine, ask):
    engine = make_engine(max_num_seqs=1, prefix_caching=False)
    alone = [r.output_token_ids for r in ask(engine, "one", n=3, temperature=1.0, seed=7)]
    run(engine)
    engine = make_engine()
    requests = ask(engine, "one", n=3, temperature=1.0, seed=7)
    for _ in range(4):
        engine.advance()
    engine.scheduler.preempt(requests[2])
    run(engine)
    assert [r.output_token_ids for r in requests] == alone
    assert len({tuple(ids) for ids in alone}) == 3


def test_prompt_logprobs_see_the_image(make_engine, ask):
    logprobs = []
    for name in ("one", "other"):
        engine = make_engine(max_num_batched_tokens=9)
        (request,) = ask(engine, name, prompt_logprobs=0)
        run(engine)
        assert len(request.prompt_logprobs) == request.num_prompt_tokens - 1
        logprobs.append([entry.logprob for entry in request.prompt_logprobs])
    first, second = logprobs
    # The start mark is the same in all images; what it predicts depends on no image.
    assert first[:3] == second[:3]
    assert first[-1] != second[-1]


def test_nothing_is_kept_of_ended_requests(make_engine, ask):
    engine = make_engine(max_num_batched_tokens=8)
    ask(engine, "one")
    (aborted,) = ask(engine, "two")
    while aborted.row < 0:
        engine.advance()
    engine.abort(aborted)
    run(engine)
    ask(engine, "text")
    run(engine)
    encoder = engine.runner.builder.images
    assert not encoder._encoded and not encoder._spans


def test_bad_images_cost_nobody_else(make_engine, ask, plain, images):
    engine = make_engine()
    (request,) = ask(engine, "one")
    params = SamplingParams(max_tokens=5)
    with pytest.raises(RequestError, match=r"has 0 image tokens \(id 319\) for 1 images"):
        engine.add([5, 6], params, images=[images["a"]])
    with pytest.raises(PromptTooLongError, match="prompt has 401 tokens"):
        engine.add([IMAGE, *[5] * 391], params, images=[images["a"]])
    run(engine)
    assert request.output_token_ids == plain["one"]


def test_an_image_token_without_any_image_is_a_token(make_engine):
    engine = make_engine()
    (request,) = engine.add([5, IMAGE, 6], SamplingParams(max_tokens=4, ignore_eos=True))
    run(engine)
    assert request.prompt_token_ids == [5, IMAGE, 6]
    assert len(request.output_token_ids) == 4


def test_a_model_without_a_tower_refuses_images(tmp_path, images):
    path = write_tiny_checkpoint(tmp_path, "deepseek_v41")
    engine = Engine.from_config(
        EngineConfig.from_flat(str(path), **OPTIONS), PluginHost(load_entry_points=False)
    )
    with pytest.raises(RequestError, match=r"images: 1 were given, allowed are 0.*no vision tower"):
        engine.add([5, IMAGE], SamplingParams(), images=[images["a"]])
