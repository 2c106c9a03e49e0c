"""What `cache.kv_format` may say, and what records follow from it."""

from __future__ import annotations

import pytest
from deepinfer_core.errors import ConfigError
from deepinfer_core.kv.format import KVFormat
from deepinfer_core.ops.records import Record

SUPPORTED = ("584+132", "auto+132")


def test_auto_means_rows_in_the_dtype_of_the_model() -> None:
    plain = KVFormat.parse("auto", SUPPORTED)
    assert plain == KVFormat()
    assert plain.row_record(512, 64) is plain.key_record(128, is_turned=True) is None


def test_rows_and_keys_have_formats_of_their_own() -> None:
    found = KVFormat.parse("584+132", SUPPORTED)
    assert found.row_record(512, 64) == Record("584", 512, tail=64)
    assert found.key_record(128, is_turned=True) == Record("132", 128, is_turned=True)
    keys_only = KVFormat.parse("auto+132", SUPPORTED)
    assert keys_only.row_record(512, 64) is None
    assert keys_only.key_record(128, is_turned=False) == Record("132", 128)


@pytest.mark.parametrize("text", ["584+68", "584", "", "fp8"])
def test_what_a_model_does_not_support(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KVFormat.parse(text, SUPPORTED)
    message = str(caught.value)
    assert "cache.kv_format" in message
    assert repr(text) in message
    assert "auto, 584+132, auto+132" in message


def test_a_narrow_record_has_room_for_its_parts() -> None:
    record = Record("584", 32, tail=16)
    assert (record.code_bytes, record.tail_offset, record.scale_offset) == (16, 16, 48)
    assert (record.num_scales, record.num_bytes) == (1, 56)
    odd = Record("288", 27)
    assert (odd.code_bytes, odd.num_scales, odd.num_bytes) == (14, 2, 16)
