"""Groups of layers over equal pages: little padding, small granularity, no overlap."""

from __future__ import annotations

import pytest
from deepinfer_core.errors import ConfigError
from deepinfer_core.kv.layout import LayerKV, make_layout
from hypothesis import given
from hypothesis import strategies as st

FULL = LayerKV("full", 8, 128, 2)
WINDOW = LayerKV("window", 8, 128, 2, 128)

layer_kvs = st.builds(
    lambda heads, dim, dtype_bytes, window: LayerKV(
        "window" if window else "full", heads, dim, dtype_bytes, window
    ),
    st.integers(1, 16),
    st.sampled_from([8, 16, 64, 96, 128]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([None, 1, 8, 128]),
)


def test_equal_layers_form_one_group() -> None:
    layout = make_layout([FULL] * 4, block_size=16)
    (group,) = layout.groups
    assert group.layers == (0, 1, 2, 3)
    assert layout.page_bytes == 16 * 4 * FULL.bytes_per_token
    assert layout.hit_granularity == group.block_size == 16
    assert layout.layer_groups == (0, 0, 0, 0)


def test_the_smaller_group_holds_more_positions() -> None:
    layout = make_layout([WINDOW, WINDOW, FULL, WINDOW, WINDOW], block_size=16)
    assert [(g.kind, g.layers, g.block_size) for g in layout.groups] == [
        ("window", (0, 1, 3, 4), 16),
        ("full", (2,), 64),
    ]
    assert layout.hit_granularity == 64


def test_padding_is_traded_for_a_small_granularity() -> None:
    # 22 to 4 layers: 88 positions would fill the page, but hits would be multiples of 176.
    layout = make_layout([WINDOW] * 22 + [FULL] * 4, block_size=16)
    assert layout.groups[1].block_size == 80
    assert layout.hit_granularity == 80


def test_offsets_follow_layer_then_key_then_value() -> None:
    (group,) = make_layout([FULL] * 3, block_size=4).groups
    plane = 4 * 8 * 128 * 2
    assert [group.page_offset_bytes(layer) for layer in range(3)] == [
        (0, plane),
        (2 * plane, 3 * plane),
        (4 * plane, 5 * plane),
    ]


@given(st.lists(layer_kvs, min_size=1, max_size=40), st.sampled_from([1, 4, 16, 64]))
def test_any_mix_of_layers_fits_its_pages(layers: list[LayerKV], block_size: int) -> None:
    layout = make_layout(layers, block_size=block_size)
    assert sorted(layer for group in layout.groups for layer in group.layers) == list(
        range(len(layers))
    )
    for group in layout.groups:
        used = group.block_size * group.bytes_per_token
        assert used <= layout.page_bytes
        assert layout.hit_granularity % group.block_size == 0
        assert layout.page_bytes % group.layer_kv.dtype_bytes == 0
        if block_size >= 16:
            assert layout.page_bytes - used < 0.1 * layout.page_bytes
        half = group.block_size * group.layer_kv.bytes_per_token // 2
        offsets = [offset for layer in group.layers for offset in group.page_offset_bytes(layer)]
        assert offsets == list(range(0, used, half))


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [LayerKV("window", 1, 1, 1)],
        [LayerKV("full", 1, 1, 1, 4)],
        [LayerKV("window", 1, 1, 1, 0)],
    ],
    ids=["no layers", "window without size", "full with window", "empty window"],
)
def test_impossible_layers_are_refused(layers: list[LayerKV]) -> None:
    with pytest.raises(ConfigError):
        make_layout(layers, block_size=16)
