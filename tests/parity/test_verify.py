"""`verify` finds every feature equal to the plain run, and finds a planted difference."""

import json

import pytest
from deepinfer_core.cli import main
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError
from deepinfer_core.plugins import PluginHost
from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.sampling.row_state import RowState
from deepinfer_core.sampling.sampler import Sampler
from deepinfer_core.structured.constraint import Constraint
from deepinfer_core.structured.masks import GrammarMasks
from deepinfer_core.testing.tiny import TINY_FAMILIES, write_tiny_checkpoint
from deepinfer_core.testing.tiny_v41 import FOUR_LAYERS, TINY_VISION
from deepinfer_core.verify.cases import Point
from deepinfer_core.verify.report import verify_model

THREE_LAYERS = {
    "num_hidden_layers": 3,
    "compress_ratios": [0, 4, 128],
    "num_hash_layers": 1,
    "hc_sinkhorn_iters": 4,
}
PREDICTED = {"num_nextn_predict_layers": 1}
DRAFTED = {"dspark_block_size": 5, "dspark_noise_token_id": 317, "dspark_markov_rank": 16}
POINTS = {
    "llama": (110, "llama", {}),
    "mistral": (60, "mistral", {}),
    "qwen2": (15, "qwen2", {}),
    "qwen2_window": (30, "qwen2_window", {}),
    "qwen3": (15, "qwen3", {}),
    "qwen3_moe": (15, "qwen3_moe", {}),
    "v3 with mtp": (25, "deepseek_v3", PREDICTED),
    "v32 with mtp": (15, "deepseek_v32", PREDICTED),
    "v4 with mtp": (6, "deepseek_v4", THREE_LAYERS | PREDICTED),
    "v4 with dspark": (
        6,
        "deepseek_v4",
        THREE_LAYERS
        | DRAFTED
        | {"compress_ratios": [0, 4, 128, 0, 0], "dspark_target_layer_ids": [0, 1, 2]},
    ),
    "v41 with dspark": (
        8,
        "deepseek_v41",
        FOUR_LAYERS
        | DRAFTED
        | {"compress_ratios": [0, 2, 1, 1, 0, 0], "dspark_target_layer_ids": [1, 2, 3]},
    ),
}
"""Combinations of each family; what costs more gets fewer."""


def test_three_hundred_points_and_every_family():
    assert sum(count for count, _, _ in POINTS.values()) >= 300
    assert {family for _, family, _ in POINTS.values()} == set(TINY_FAMILIES)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    def path_of(family):
        path = tmp_path_factory.getbasetemp() / f"verify-{family}"
        return path if path.exists() else write_tiny_checkpoint(path, family)

    return path_of


def verify(path, *, batch_invariant=True, dtype="float32", max_tokens=8, **options):
    config = EngineConfig.from_flat(str(path), dtype=dtype, batch_invariant=batch_invariant)
    host = PluginHost(load_entry_points=False)
    return verify_model(config, host=host, max_tokens=max_tokens, **options)


@pytest.mark.parametrize("name", POINTS)
def test_random_combinations_equal_the_plain_run_bit_by_bit(name, tmp_path):
    num_points, family, fields = POINTS[name]
    write_tiny_checkpoint(tmp_path, family, **fields)
    report = verify(tmp_path, num_points=num_points, seed=len(name))
    failed = [result for result in report.results if not result.passed]
    assert report.passed, "\n".join(map(report.reproduction, failed))
    assert sum(result.num_equal for result in report.results) >= 4 * num_points
    for counter in ("num_hit_tokens", "num_preemptions", "num_accepted_tokens"):
        assert sum(getattr(result, counter) for result in report.results) > 0
    proposers = {result.point.proposer for result in report.results}
    assert {"rehearsed", *(["own"] if "with" in name else [])} <= proposers


def test_images_are_part_of_it(tmp_path, monkeypatch):
    path = write_tiny_checkpoint(tmp_path, "deepseek_v41", vision_config=TINY_VISION, **FOUR_LAYERS)
    report = verify(path, num_points=1, seed=3467, max_tokens=4)
    assert report.num_cases == 10 + 3 + 7
    assert report.passed, "\n".join(map(report.reproduction, report.results))
    # A cache that mistakes one image for another is found.
    monkeypatch.setattr("deepinfer_core.request.content_of", lambda *_: b"")
    report = verify(path, num_points=1, seed=3467, max_tokens=4)
    assert {d.case for result in report.results for d in result.differences} <= {10, 11}
    assert not report.passed


@pytest.mark.parametrize("family", ["qwen3", "deepseek_v4"])
def test_bfloat16_is_equal_too(tiny, family):
    assert verify(tiny(family), num_points=2, dtype="bfloat16").passed


def test_without_invariant_kernels_only_close_decisions_may_differ(tiny):
    report = verify(tiny("llama"), num_points=3, batch_invariant=False)
    assert report.passed
    assert report.bound == 1e-3
    close = [d for result in report.results for d in result.differences]
    assert all(difference.gap <= report.bound for difference in close)


def test_noise_that_depends_on_the_row_is_found(tiny, monkeypatch):
    """The kind of bug that `verify` is for: a seed that depends on the slot."""
    start_row = RowState.start_row

    def start_row_with_slot(self, start):
        object.__setattr__(start, "seed", start.seed + start.row)
        start_row(self, start)

    monkeypatch.setattr(RowState, "start_row", start_row_with_slot)
    report = verify(tiny("llama"), num_points=3)
    assert not report.passed
    first = next(d for result in report.results for d in result.differences)
    assert first.what in ("token", "logprob")


def test_a_stale_token_under_overlap_is_found(tiny, monkeypatch):
    read = TokenPool.read
    monkeypatch.setattr(
        TokenPool, "read", lambda self, places: read(self, (places - 1).clamp(min=0))
    )
    report = verify(tiny("llama"), num_points=6)
    failed = [result for result in report.results if not result.passed]
    assert failed
    assert all(result.point.overlap for result in failed)


def test_a_rejected_draft_that_counts_for_penalties_is_found(tiny, monkeypatch):
    count = Sampler.count
    monkeypatch.setattr(
        Sampler, "count", lambda self, rows, ids, is_kept=None: count(self, rows, ids)
    )
    report = verify(tiny("llama"), num_points=12)
    failed = [result for result in report.results if not result.passed]
    assert failed
    assert all(result.num_draft_tokens > result.num_accepted_tokens for result in failed)


def test_a_mask_that_is_a_step_out_of_date_is_found(tiny, monkeypatch):
    """It is of the token before, so answers leave their forms, and drafts their masks."""
    of_step = GrammarMasks.of_step
    late = {}

    def stale(self, plan, wanted):
        mask = of_step(self, plan, wanted)
        before, late[self] = late.get(self), mask
        is_like = before is not None and mask is not None and before.shape == mask.shape
        return before if is_like else mask

    monkeypatch.setattr(GrammarMasks, "of_step", stale)
    report = verify(tiny("llama"), num_points=8)
    failed = [result for result in report.results if not result.passed]
    assert failed
    of_forms = range(10, report.num_cases)
    assert all(set(result.point.cases) & set(of_forms) for result in failed)


def test_an_answer_that_is_not_of_its_form_is_found_though_it_is_the_plain_run(tiny, monkeypatch):
    monkeypatch.setattr(GrammarMasks, "of_step", lambda *_: None)
    monkeypatch.setattr(Constraint, "advance", lambda self, token_id: False)
    report = verify(tiny("llama"), num_points=8)
    problems = [problem for result in report.results for problem in result.problems]
    assert any("not of the form" in problem for problem in problems)


def test_a_cache_that_never_hits_is_a_failure(tiny, monkeypatch):
    """N8: a cold-against-warm check passed without one hit."""
    monkeypatch.setattr("deepinfer_core.kv.manager.KVManager.match_prefix", lambda *_: 0)
    report = verify(tiny("llama"), num_points=4)
    cached = [result for result in report.results if result.point.prefix_cache]
    assert cached
    assert all(result.problems and not result.passed for result in cached)


def test_the_command_prints_json_and_exits_by_the_verdict(tiny, capsys, monkeypatch):
    words = ["verify", str(tiny("llama")), "--points", "1", "--max-tokens", "4", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    answer = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert answer["passed"]
    monkeypatch.setattr("deepinfer_core.kv.manager.KVManager.match_prefix", lambda *_: 0)
    failing = next(i for i in range(50) if _uses_cache(i))
    with pytest.raises(SystemExit) as ended:
        main([*words, "--first", str(failing)])
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert ended.value.code == 1
    assert f"--points 1 --first {failing}" in point["reproduction"]


def _uses_cache(index):
    return Point.random(0, index, 150, num_cases=19).prefix_cache


def test_no_points_is_an_error(tiny):
    with pytest.raises(ConfigError, match="points"):
        verify(tiny("llama"), num_points=0)


def test_what_is_approximate_is_not_verified(tiny):
    config = EngineConfig.from_flat(str(tiny("deepseek_v41")), bounded_replay=True)
    with pytest.raises(ConfigError) as caught:
        verify_model(config, host=PluginHost(load_entry_points=False), num_points=1)
    assert caught.value.field == "cache.bounded_replay"
