"""Faults of other engines where drafts meet something else; ids of the list of reports."""

import pytest
from deepinfer_core import LLM, SamplingParams
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.tiny import write_tiny_checkpoint

HOST = PluginHost(load_entry_points=False)
PROMPT = "The ship left the harbor"
FIELDS = {"dtype": "float32", "batch_invariant": True, "num_blocks": 200}


def drafted(path, **fields):
    """The model as its own draft model: nearly every draft is right."""
    fields = {"num_drafts": 6, "draft_guard": False, **fields}
    return {"proposer": "draft_model", "draft_model": str(path), **FIELDS, **fields}


@pytest.fixture(scope="module")
def llms(model_dir):
    plain = LLM(str(model_dir), host=HOST, prefix_caching=False, overlap=False, **FIELDS)
    return plain, LLM(str(model_dir), host=HOST, **drafted(model_dir))


def parts(output):
    return [
        (o.text, o.token_ids, o.finish_reason, o.stop_reason, o.logprobs) for o in output.outputs
    ]


@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 3, "n": 2}])
def test_p11_p13_a_stop_string_within_accepted_drafts_cuts_text_ids_and_logprobs(llms, params):
    plain, fast = llms
    whole = plain.generate([PROMPT], SamplingParams(max_tokens=24, logprobs=1, **params))[0]
    text = whole.outputs[0].text
    for start in range(0, len(text) - 2, 2):
        stopped = SamplingParams(
            max_tokens=24, logprobs=1, stop=[text[start : start + 2]], **params
        )
        expected, found = (llm.generate([PROMPT], stopped)[0] for llm in (plain, fast))
        assert parts(found) == parts(expected)
        output = found.outputs[0]
        assert output.finish_reason == "stop"
        assert len(output.logprobs) == len(output.token_ids)
    assert fast.metrics().num_accepted_tokens > 20


def test_p12_w10_a_limit_within_accepted_drafts_is_exact(llms):
    plain, fast = llms
    for limit in range(1, 12):
        params = SamplingParams(temperature=0, max_tokens=limit)
        expected, found = (llm.generate([PROMPT], params)[0] for llm in (plain, fast))
        assert parts(found) == parts(expected)
        assert len(found.outputs[0].token_ids) <= limit


def test_a_stream_of_accepted_drafts_joins_to_the_answer(llms):
    plain, fast = llms
    params = SamplingParams(temperature=0, max_tokens=30)
    expected = plain.generate([PROMPT], params)[0].text
    deltas = list(fast.stream(PROMPT, params))
    assert "".join(delta.text for delta in deltas) == expected
    assert any(len(delta.token_ids) > 1 for delta in deltas)


def test_p8_drafts_leave_the_prefix_cache_on_and_metrics_show_both(model_dir):
    with LLM(str(model_dir), host=HOST, block_size=4, **drafted(model_dir)) as llm:
        params = SamplingParams(temperature=0, max_tokens=12)
        first, again = (llm.generate([PROMPT], params)[0] for _ in range(2))
        assert again.metrics.num_cached_tokens > 0
        assert parts(first) == parts(again)
        metrics = llm.metrics()
        assert metrics.num_hit_tokens > 0 and metrics.num_accepted_tokens > 0
        assert metrics.mean_accepted_len > 1
        assert metrics.budget_used <= 1
        # P7: what the drafter knew of the prefix was cached with it.
        own = again.metrics
        assert own.num_accepted_tokens == own.num_draft_tokens > 0
        assert own.acceptance_by_position[0] == 1
        assert own.num_wasted_tokens == 0


def test_p15_p16_windows_are_reclaimed_while_drafts_look_ahead(tmp_path):
    """The pool holds little more than the window of 24 tokens and what drafts need."""
    write_tiny_checkpoint(tmp_path, "mistral")
    config = EngineConfig.from_flat(
        str(tmp_path), **drafted(tmp_path, block_size=4, num_blocks=13, max_model_len=400)
    )
    engine = Engine.from_config(config, HOST)
    params = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
    (request,) = engine.add([5, 9, 3], params)
    while engine.has_unfinished:
        engine.advance()
        engine.check_integrity()
    assert request.num_output_tokens == 300
    metrics = engine.metrics()
    assert metrics["num_preemptions"] == 0
    assert metrics["num_steps"] < 150
    assert metrics["num_free_blocks"] == metrics["num_blocks"]
