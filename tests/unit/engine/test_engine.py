"""The loop on a real (tiny) model: whatever happens around a request, its tokens stay."""

import gc
import random

import pytest
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.errors import RequestError
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny import write_tiny_checkpoint

PROMPTS = [
    [7, 3, 9, 11, 5],
    [4] * 16,
    [random.Random(1).randrange(3, 60) for _ in range(40)],
    [8, 8, 2, 30],
]
STYLES = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.8, "top_k": 8, "seed": 9, "logprobs": 2},
    {"temperature": 0, "repetition_penalty": 1.2, "presence_penalty": 0.4},
]


def run(engine):
    while engine.has_unfinished:
        engine.advance()
    engine.check_integrity()


def ask(engine, index, **changes):
    fields = {"max_tokens": 12, "ignore_eos": True, **STYLES[index], **changes}
    return engine.add(PROMPTS[index], SamplingParams(**fields))


@pytest.fixture(scope="module")
def plain(make_engine):
    """Tokens of each prompt alone, step by step."""
    outputs = []
    for index in range(len(PROMPTS)):
        engine = make_engine(max_num_seqs=1, overlap=False, prefix_caching=False)
        (request,) = ask(engine, index)
        while engine.has_unfinished:
            engine.step()
        outputs.append(request.output_token_ids)
    return outputs


@pytest.mark.parametrize("overlap", [False, True])
def test_a_batch_gives_what_each_prompt_gives_alone(make_engine, plain, overlap):
    engine = make_engine(overlap=overlap)
    requests = [ask(engine, index)[0] for index in range(len(PROMPTS))]
    run(engine)
    assert [request.output_token_ids for request in requests] == plain


@pytest.mark.parametrize("overlap", [False, True])
def test_aborting_at_every_step_boundary_changes_nobody_else(make_engine, plain, overlap):
    """Y8, Y9: an abort before allocation, in flight, twice, or after the end is harmless."""
    for boundary in range(14):
        engine = make_engine(overlap=overlap, max_num_seqs=3)
        requests = [ask(engine, index)[0] for index in range(len(PROMPTS))]
        for _ in range(boundary):
            engine.advance()
        victim = requests[boundary % len(requests)]
        engine.abort(victim)
        engine.abort(victim)
        run(engine)
        for index, request in enumerate(requests):
            if request is victim:
                assert request.output_token_ids == plain[index][: len(request.output_token_ids)]
            else:
                assert request.output_token_ids == plain[index]
        assert victim.finish_reason in ("abort", "length")
        assert engine.metrics()["num_free_blocks"] == engine.metrics()["num_blocks"]


def test_preempting_everybody_at_every_step_loses_no_token(make_engine, plain):
    """Y4: a token in flight when its request is preempted is kept."""
    engine = make_engine(overlap=True, max_num_batched_tokens=8)
    requests = [ask(engine, index)[0] for index in range(len(PROMPTS))]
    for step in range(12):
        engine.advance()
        if step % 3 == 1:
            engine.scheduler.preempt_all()
            assert engine.metrics()["num_preemptions"] == sum(r.num_preemptions for r in requests)
    run(engine)
    assert [request.output_token_ids for request in requests] == plain
    assert engine.metrics()["num_preemptions"] > 0


def test_clearing_the_prefix_cache_while_running_loses_no_token(make_engine, plain):
    """Y3: the first token after pause and clear was dropped."""
    engine = make_engine(overlap=True)
    requests = [ask(engine, index)[0] for index in range(len(PROMPTS))]
    for _ in range(4):
        engine.advance()
        engine.reset_prefix_cache()
    run(engine)
    assert [request.output_token_ids for request in requests] == plain
    ask(engine, 2)
    run(engine)
    assert engine.metrics()["num_hit_tokens"] == 0, "content from before the reset was served"


def test_samples_share_the_prompt_and_differ(make_engine):
    engine = make_engine()
    requests = ask(engine, 1, n=4, max_tokens=8)
    engine.advance()
    engine.advance()
    # 16 prompt tokens fill one block of 16: four samples hold it together and one each to write.
    held = engine.metrics()["num_blocks"] - engine.metrics()["num_free_blocks"]
    assert held == 1 + 4
    run(engine)
    outputs = {tuple(request.output_token_ids) for request in requests}
    assert len(outputs) == 4, "samples of one seed must differ by their index"
    again = ask(make_engine(), 1, n=4, max_tokens=8)
    assert [r.seed for r in requests] == [5] * 4 == [r.seed for r in again]


def test_a_prompt_seen_before_gives_the_same_prompt_logprobs(make_engine):
    """N13: log-probabilities of cached positions came from stale memory."""
    engine = make_engine(overlap=True)
    first = ask(engine, 2, prompt_logprobs=2)[0]
    run(engine)
    warm_up = ask(engine, 2)[0]
    second = ask(engine, 2, prompt_logprobs=2)[0]
    run(engine)
    assert warm_up.num_cached_tokens > 0
    assert second.num_cached_tokens == 0
    assert len(first.prompt_logprobs) == len(PROMPTS[2]) - 1
    assert first.prompt_logprobs == second.prompt_logprobs


def test_the_seed_is_random_by_default_and_told(make_engine):
    """N15: with a fixed internal seed every request replayed one stream."""
    engine = make_engine()
    requests = [
        engine.add(PROMPTS[0], SamplingParams(max_tokens=12, ignore_eos=True))[0] for _ in range(4)
    ]
    run(engine)
    assert len({request.seed for request in requests}) == 4
    assert len({tuple(request.output_token_ids) for request in requests}) > 1
    again = engine.add(
        PROMPTS[0], SamplingParams(max_tokens=12, ignore_eos=True, seed=requests[2].seed)
    )[0]
    run(engine)
    assert again.output_token_ids == requests[2].output_token_ids


@pytest.mark.parametrize("overlap", [False, True])
def test_a_row_with_nothing_to_draw_ends_alone(make_engine, plain, overlap):
    engine = make_engine(overlap=overlap)
    only_eos = SamplingParams(allowed_token_ids=engine.info.eos_token_ids, min_tokens=3)
    bad = engine.add(PROMPTS[0], only_eos)[0]
    good = ask(engine, 1)[0]
    run(engine)
    assert bad.finish_reason == "error"
    assert isinstance(bad.error, RequestError)
    assert good.output_token_ids == plain[1]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2])
def test_exactly_as_many_tokens_as_asked_for(make_engine, plain, overlap, max_tokens):
    """W10: max_new_tokens=1 returned two tokens."""
    engine = make_engine(overlap=overlap)
    requests = [ask(engine, index, max_tokens=max_tokens)[0] for index in range(len(PROMPTS))]
    run(engine)
    for request, wanted in zip(requests, plain, strict=True):
        assert request.output_token_ids == wanted[:max_tokens]
        assert request.finish_reason == "length"


def test_output_ends_where_the_pool_ends(make_engine):
    engine = make_engine(num_blocks=4, block_size=4)
    request = ask(engine, 0, max_tokens=500)[0]
    run(engine)
    assert request.finish_reason == "length"
    assert request.num_tokens == engine.limits.max_pool_tokens


def test_a_long_context_costs_nothing_until_it_is_used(tmp_path):
    """A million tokens of max_model_len: neither tables nor rotary angles grow with it."""
    sizes, engines = [], []
    for length in (1024, 1_000_000):
        path = write_tiny_checkpoint(
            tmp_path / str(length), "llama", max_position_embeddings=length
        )
        config = EngineConfig.from_flat(str(path), dtype="float32", num_blocks=50)
        before = tensor_bytes()
        engine = Engine.from_config(config, PluginHost(load_entry_points=False))
        engines.append(engine)  # its memory must not be reused before both are measured
        request = engine.add(PROMPTS[0], SamplingParams(max_tokens=4, temperature=0))[0]
        run(engine)
        sizes.append(tensor_bytes() - before)
        assert engine.limits.max_model_len == length
        assert request.num_output_tokens == 4
    assert abs(sizes[1] - sizes[0]) < 1000


def tensor_bytes():
    """Of all tensors alive, packed weights aside: they have no storage of torch's."""
    gc.collect()
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in gc.get_objects()
        if issubclass(type(tensor), torch.Tensor) and not (tensor.is_meta or tensor.is_mkldnn)
    }
    return sum(storages.values())
