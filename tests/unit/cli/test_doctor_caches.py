"""`deepinfer doctor --model`: bytes of caches, as those of the released models are counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deepinfer_core import cli
from deepinfer_core.cli.doctor_caches import ModelCaches, measure_caches
from deepinfer_core.errors import ConfigError
from deepinfer_core.kv.context_bytes import CacheUse, cache_uses
from deepinfer_core.kv.layout import LayerKV
from deepinfer_core.testing.released import V3, V4_FLASH, V4_PRO, V32, V41_FLASH

MODELS = {
    "V3": V3,
    "V3.2": V32,
    "V4-Flash": V4_FLASH,
    "V4-Pro": V4_PRO,
    "V4.1-Flash": V41_FLASH,
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Nothing but configurations."""
    root = tmp_path_factory.mktemp("configs")
    for name, config in MODELS.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    return {name: root / name for name in MODELS}


@pytest.mark.parametrize(
    ("model", "kv_format", "bytes_per_token"),
    [
        ("V3", "auto", 70_272),
        ("V3.2", "656+132", 48_068),
        ("V3.2", "auto+132", 78_324),
        ("V4-Flash", "584+68", 3514.25),
        ("V4-Flash", "584+132", 3850.25),
        ("V4-Pro", "584+68", 5031.4375),
        ("V4-Pro", "584+132", 5511.4375),
        ("V4.1-Flash", "288+68", 890),
        ("V4.1-Flash", "528+68", 1490),
        ("V4.1-Flash", "584+68", 1630),
        ("V4.1-Flash", "584+132", 1790),
    ],
)
def test_what_grows_with_the_context(
    directories: dict[str, Path], model: str, kv_format: str, bytes_per_token: float
) -> None:
    caches = measure_caches(str(directories[model]), 1_000_000, kv_format)
    assert caches.bytes_per_token == bytes_per_token
    # A million is no multiple of 128: the open group of each such cache is not there yet.
    growing = caches.total_bytes - caches.fixed_bytes
    assert 0 <= 1_000_000 * bytes_per_token - growing < 128 * 61 * 584


@pytest.mark.parametrize(
    ("model", "windows", "open_groups"),
    [
        ("V4-Flash", 3_214_336, 21 * (64 + 16) * 1024 + 20 * 512 * 1024),
        ("V4-Pro", 4_560_000, None),
        ("V4.1-Flash", 40 * 128 * 528, 3 * 2 * 4096),
        ("V3.2", 0, 0),
    ],
)
def test_what_a_request_holds_at_any_length(
    directories: dict[str, Path], model: str, windows: int, open_groups: int | None
) -> None:
    kv_format = {"V3.2": "656+132", "V4.1-Flash": "288+68"}.get(model, "584+132")
    caches = measure_caches(str(directories[model]), None, kv_format)
    found = fixed_bytes(caches)
    assert found.get("windows", 0) == pytest.approx(windows, rel=1e-3)
    if open_groups is not None:
        assert found.get("open groups", 0) == open_groups
    assert caches.fixed_bytes == sum(found.values())


def fixed_bytes(caches: ModelCaches) -> dict[str, int]:
    sums: dict[str, int] = {}
    for use in caches.uses:
        if use.window_size is not None:
            sums[use.purpose] = sums.get(use.purpose, 0) + use.fixed_bytes
    return sums


def test_windows_fill_up_and_rows_come_with_their_last_token() -> None:
    window = CacheUse("windows", "bfloat16", 3, 10, 1, 24)
    assert [window.bytes_at(n) for n in (0, 1, 24, 99)] == [0, 30, 720, 720]
    assert (window.bytes_per_token, window.fixed_bytes) == (0.0, 720)
    rows = CacheUse("rows", "68", 2, 68, 4, None)
    assert [rows.bytes_at(n) for n in (3, 4, 9)] == [0, 136, 272]
    assert (rows.bytes_per_token, rows.fixed_bytes) == (34.0, 0)


def test_keys_and_values_of_plain_models_are_counted_too() -> None:
    (use,) = cache_uses([LayerKV("full", 2, 64, 2)] * 5, "bfloat16")
    assert use == CacheUse("keys and values", "bfloat16", 5, 512, 1, None)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", *words])
    assert not ended.value.code
    return capsys.readouterr().out


def test_the_command_prints_tables_and_json(
    directories: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = ("--model", str(directories["V4-Flash"]), "--kv-format", "584+68")
    text = run(capsys, *words, "--context", "1000000")
    assert "grows by 3,514.25 bytes a token" in text
    assert "at 1,000,000 tokens: 3,529,664,576 bytes a request" in text
    answer = json.loads(run(capsys, *words, "--json"))
    assert answer["context"] == 1_048_576
    assert answer["bytes_per_token"] == 3514.25
    assert answer["fixed_bytes"] == 15_420_416
    assert answer["uses"][0] == {
        "purpose": "windows",
        "held_as": "584",
        "num_caches": 43,
        "row_bytes": 584,
        "tokens_per_row": 1,
        "window_size": 128,
        "bytes_per_token": 0.0,
        "fixed_bytes": 3_214_336,
    }


def test_a_format_that_the_model_does_not_have(directories: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"cache\.kv_format = '584\+132'; allowed: auto"):
        measure_caches(str(directories["V3"]), 1, "584+132")


def test_a_context_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", "--context", "5"])
    assert ended.value.code
    assert "--model = None; allowed: a directory with a config.json" in capsys.readouterr().err
