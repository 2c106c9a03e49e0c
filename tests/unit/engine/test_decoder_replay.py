"""Decoder replay: rows for others are those of a full run, late layers compute a window's tokens.

The answer behind a long chunk is approximate, so nothing here compares it with one computed whole.
"""

import math

import pytest
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.errors import ConfigError
from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.plugins import PluginHost
from deepinfer_core.runtime.kv_cache import layer_caches
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny import write_tiny_checkpoint

WINDOW = 8
LONG = [(11 * i + i * i) % 250 + 3 for i in range(60)]
SHORT = LONG[20 : 20 + WINDOW]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "v41", "deepseek_v41")


def make(model_dir, **fields):
    options = {
        "dtype": "float32",
        "batch_invariant": True,
        "num_blocks": 150,
        "bounded_replay": True,
        "decoder_replay": True,
        **fields,
    }
    config = EngineConfig.from_flat(str(model_dir), **options)
    return Engine.from_config(config, PluginHost(load_entry_points=False))


def ask(engine, *prompts):
    params = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0, logprobs=1)
    requests = [engine.add(prompt, params)[0] for prompt in prompts]
    while engine.has_unfinished:
        engine.advance()
    engine.check_integrity()
    return [(request.output_token_ids, request.logprobs) for request in requests]


def kept_rows(engine, num_tokens):
    """What the caches without a window hold of the only prompt so far, in order."""
    runner, layout = engine.runner, engine._kv.layout
    kinds: list[LayerKV] = runner.model.layer_kv()
    caches = layer_caches(runner._pool, layout, runner.model.dtype)
    table = torch.tensor(sorted(engine._kv.pool.cached_blocks.values()))
    return [
        cache.k_cache[table].flatten(0, 1)[: num_tokens // kind.tokens_per_row]
        for kind, cache in zip(kinds, caches, strict=True)
        if kind.kind == "full"
    ]


def test_rows_for_others_are_those_of_a_full_run(model_dir):
    held = []
    for trims in (False, True):
        engine = make(model_dir, decoder_replay=trims)
        ask(engine, LONG)
        held.append(kept_rows(engine, 48))
    assert len(held[0]) == 6
    for full, trimmed in zip(*held, strict=True):
        assert full.abs().sum() > 0 and torch.equal(full, trimmed)


def test_late_layers_compute_the_last_tokens_of_each_request_alone(model_dir):
    engine = make(model_dir, overlap=False)
    counts = {index: [] for index in (3, 4, 5, 7)}
    for index, seen in counts.items():
        layer = engine.runner.model.layers[index].ffn
        layer.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(len(args[0])))
    ask(engine, LONG, SHORT[:5])
    assert counts[3][0] == 65, "every token goes through the layers before the last source"
    assert [counts[index][0] for index in (4, 5, 7)] == [WINDOW + 5] * 3
    assert all(count <= 2 for index in counts for count in counts[index][1:])


def test_chunks_of_a_window_are_computed_whole(model_dir):
    trimmed = make(model_dir, max_num_batched_tokens=WINDOW)
    full = make(model_dir, max_num_batched_tokens=WINDOW, decoder_replay=False)
    assert ask(trimmed, LONG) == ask(full, LONG)


def test_a_short_prompt_beside_a_long_one_is_exact(model_dir):
    (_, beside), (alone,) = ask(make(model_dir), LONG, SHORT), ask(make(model_dir), SHORT)
    (full,) = ask(make(model_dir, decoder_replay=False), SHORT)
    assert beside == alone == full


def test_windows_that_were_never_written_are_never_read(model_dir):
    answers = []
    for byte in (0, 0xFF):
        engine = make(model_dir, max_num_batched_tokens=25)
        engine.runner._pool[1:] = byte
        answers += ask(engine, LONG)
    assert answers[0] == answers[1]
    assert all(math.isfinite(entry.logprob) for entry in answers[0][1])


def test_hits_replay_behind_it(model_dir):
    engine = make(model_dir)
    ask(engine, LONG)
    before = [rows.clone() for rows in kept_rows(engine, 48)]
    ask(engine, [*LONG[:50], 9, 9])
    assert engine.metrics()["num_hit_tokens"] == 48
    assert all(map(torch.equal, before, kept_rows(engine, 48)))


def test_it_goes_only_with_bounded_replay(model_dir):
    with pytest.raises(ConfigError) as caught:
        make(model_dir, bounded_replay=False)
    assert caught.value.field == "cache.decoder_replay"


def test_other_models_have_no_decoder_to_replay(tmp_path):
    with pytest.raises(ConfigError) as caught:
        make(write_tiny_checkpoint(tmp_path, "deepseek_v4"))
    assert caught.value.field == "cache.decoder_replay"
