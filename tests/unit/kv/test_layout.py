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
    assert group.caches == (0, 1, 2, 3)
    assert layout.page_bytes == 16 * 4 * FULL.bytes_per_token
    assert layout.hit_granularity == group.block_size == 16
    assert layout.cache_groups == (0, 0, 0, 0)


def test_the_smaller_group_holds_more_positions() -> None:
    layout = make_layout([WINDOW, WINDOW, FULL, WINDOW, WINDOW], block_size=16)
    assert [(g.kind, g.caches, g.block_size) for g in layout.groups] == [
        ("window", (0, 1, 3, 4), 16),
        ("full", (2,), 64),
    ]
    assert layout.hit_granularity == 64


def test_padding_is_traded_for_a_small_granularity() -> None:
    # 22 to 4 layers: 88 positions would fill the page, but hits would be multiples of 176.
    layout = make_layout([WINDOW] * 22 + [FULL] * 4, block_size=16)
    assert layout.groups[1].block_size == 80
    assert layout.hit_granularity == 80


def test_caches_of_one_lifetime_lie_side_by_side_whatever_their_widths() -> None:
    latent, index = (
        LayerKV("full", 1, 576, 2, num_planes=1),
        LayerKV("full", 1, 128, 2, num_planes=1),
    )
    window = LayerKV("window", 1, 64, 2, 128)
    layout = make_layout([latent, latent, window, index, index], block_size=4)
    group, other = layout.groups
    assert (group.kind, group.caches, other.caches) == ("full", (0, 1, 3, 4), (2,))
    assert group.bytes_per_token == 2 * (1152 + 256)
    assert group.plane_offsets == (0, 4608, 9216, 10240)
    assert layout.cache_groups == (0, 0, 1, 0, 0)


def test_compressed_rows_share_the_table_of_their_tokens() -> None:
    quarter = LayerKV("full", 1, 512, 2, num_planes=1, tokens_per_row=4)
    rare = LayerKV("full", 1, 512, 2, num_planes=1, tokens_per_row=128)
    raw = LayerKV("window", 1, 2048, 4, 8, num_planes=1, dtype="float32")
    layout = make_layout([quarter, rare, raw], block_size=8)
    compressed, open_rows = layout.groups
    # A whole row of the rarest cache is the least that a page can hold; it alone sets how fine a
    # prefix can be found, and windows take a divisor of it.
    assert (compressed.block_size, open_rows.block_size) == (128, 4)
    assert layout.page_bytes == 128 * (256 + 8)
    assert layout.hit_granularity == 128
    assert compressed.plane_offsets == (0, 128 // 4 * 1024)
    assert compressed.bytes_per_token == 256 + 8


def test_a_page_of_compressed_rows_holds_a_token_of_every_window() -> None:
    rare = LayerKV("full", 1, 8, 2, num_planes=1, tokens_per_row=128)
    raw = LayerKV("window", 1, 2048, 4, 8, num_planes=1, dtype="float32")
    compressed, open_rows = make_layout([rare, raw], block_size=16).groups
    assert (compressed.block_size, open_rows.block_size) == (128 * 512, 1)


@given(st.lists(layer_kvs, min_size=1, max_size=40), st.sampled_from([1, 4, 16, 64]))
def test_any_mix_of_layers_fits_its_pages(layers: list[LayerKV], block_size: int) -> None:
    layout = make_layout(layers, block_size=block_size)
    assert sorted(layer for group in layout.groups for layer in group.caches) == list(
        range(len(layers))
    )
    for group in layout.groups:
        used = group.block_size * group.bytes_per_token
        assert used <= layout.page_bytes
        assert layout.hit_granularity % group.block_size == 0
        assert all(layout.page_bytes % kv.dtype_bytes == 0 for kv in group.layer_kvs)
        if block_size >= 16:
            assert layout.page_bytes - used < 0.1 * layout.page_bytes
        sizes = [group.block_size * kv.bytes_per_token for kv in group.layer_kvs]
        ends = [*group.plane_offsets[1:], used]
        assert [
            start + size for start, size in zip(group.plane_offsets, sizes, strict=True)
        ] == ends


def test_windows_that_hits_do_not_need_have_a_table_of_their_own() -> None:
    raw = LayerKV("window", 8, 128, 2, 128, needed_by_hits=False)
    layout = make_layout([FULL, WINDOW, raw, WINDOW, raw, raw], block_size=16)
    assert [(g.caches, g.needed_by_hits) for g in layout.groups] == [
        ((0,), True),
        ((1, 3), True),
        ((2, 4, 5), False),
    ]
    assert [group.block_size for group in layout.groups] == [48, 24, 16]
    assert make_layout([FULL, raw, raw, raw], block_size=5).hit_granularity == 15
    assert make_layout([FULL, WINDOW, WINDOW, WINDOW], block_size=5).hit_granularity == 15


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [LayerKV("window", 1, 1, 1)],
        [LayerKV("full", 1, 1, 1, 4)],
        [LayerKV("window", 1, 1, 1, 0)],
        [LayerKV("full", 1, 1, 1, needed_by_hits=False)],
    ],
    ids=["no layers", "window without size", "full with window", "empty window", "full, unneeded"],
)
def test_impossible_layers_are_refused(layers: list[LayerKV]) -> None:
    with pytest.raises(ConfigError):
        make_layout(layers, block_size=16)
