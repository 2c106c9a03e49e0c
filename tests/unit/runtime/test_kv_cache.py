"""Every layer's keys and values have their own bytes, and the pool's size is arithmetic."""

import logging

import psutil
import pytest
import torch
from deepinfer_core.config import CacheConfig
from deepinfer_core.errors import ConfigError, OutOfDeviceMemoryError
from deepinfer_core.kv.format import row_kv
from deepinfer_core.kv.layout import LayerKV, make_layout
from deepinfer_core.ops.records import make_record
from deepinfer_core.runtime.kv_cache import (
    STEP_MARGIN,
    allocate_pool,
    choose_num_blocks,
    layer_caches,
)

FULL = LayerKV(kind="full", num_kv_heads=2, head_dim=8, dtype_bytes=2)
WINDOW = LayerKV(kind="window", num_kv_heads=1, head_dim=4, dtype_bytes=2, window_size=16)


def test_views_are_disjoint_and_stay_in_their_block():
    layout = make_layout([FULL, WINDOW, FULL, WINDOW], block_size=4)
    pool = allocate_pool(layout, 3, torch.device("cpu"))
    caches = layer_caches(pool, layout, torch.bfloat16)
    views = [view for cache in caches for view in (cache.k_cache, cache.v_cache)]
    for group in layout.groups:
        pool.zero_()
        own = [v for layer in group.caches for v in (caches[layer].k_cache, caches[layer].v_cache)]
        for number, view in enumerate(own, start=1):
            view[1] = number
        for number, view in enumerate(own, start=1):
            assert (view[1] == number).all(), "another view of the group wrote here"
        assert not pool[0].any()
        assert not pool[2].any()
    assert all(view.shape[0] == 3 and view[0].is_contiguous() for view in views)


def test_records_of_any_number_of_bytes_lie_side_by_side():
    """Behind rows of large numbers, in pages that are no multiple of any of them."""
    kinds = [
        row_kv(512, "bfloat16", "rows", record=make_record("584", 512, 64), tokens_per_row=4),
        row_kv(128, "bfloat16", "keys", record=make_record("132", 128), tokens_per_row=4),
        row_kv(27, "bfloat16", "keys", record=make_record("288", 27), tokens_per_row=2),
        row_kv(6, "float32", "open groups", window_size=8),
        row_kv(32, "bfloat16", "windows", record=make_record("584", 32, 16), window_size=8),
    ]
    layout = make_layout(kinds, block_size=8)
    pool = allocate_pool(layout, 4, torch.device("cpu"))
    caches = layer_caches(pool, layout, torch.bfloat16)
    assert [cache.k_cache.shape[-1] for cache in caches] == [584, 132, 16, 6, 56]
    assert [str(cache.k_cache.dtype) for cache in caches] == [
        *["torch.uint8"] * 3, "torch.float32", "torch.uint8"
    ]  # fmt: skip
    for cache, group in enumerate(layout.cache_groups):
        pool.zero_()
        caches[cache].k_cache[2] = 1
        others = [c for c, g in enumerate(layout.cache_groups) if g == group and c != cache]
        assert not any(caches[other].k_cache.any() for other in others)
        assert not pool[[0, 1, 3]].any()


def test_copying_a_page_copies_the_block_in_every_layer():
    layout = make_layout([FULL, FULL], block_size=4)
    pool = allocate_pool(layout, 4, torch.device("cpu"))
    caches = layer_caches(pool, layout, torch.bfloat16)
    for cache in caches:
        cache.k_cache[1] = torch.randn(cache.k_cache[1].shape)
        cache.v_cache[1] = torch.randn(cache.v_cache[1].shape)
    pool[3] = pool[1]
    for cache in caches:
        assert torch.equal(cache.k_cache[3], cache.k_cache[1])
        assert torch.equal(cache.v_cache[3], cache.v_cache[1])


def choose(layout, free_bytes, step_bytes=None, **fields):
    return choose_num_blocks(layout, CacheConfig(**fields), free_bytes, step_bytes)


def test_number_of_blocks_follows_from_free_memory_and_is_logged(caplog):
    layout = make_layout([FULL] * 2, block_size=4)
    with caplog.at_level(logging.INFO, logger="deepinfer_core"):
        assert choose(layout, layout.page_bytes * 100, memory_fraction=0.25) == 25
    assert "25 blocks" in caplog.text
    assert f"{layout.page_bytes * 100:,} bytes free x 0.25" in caplog.text


@pytest.mark.parametrize(("step_pages", "num_blocks"), [(0, 50), (40, 50), (60, 25), (4000, None)])
def test_steps_keep_what_they_were_measured_to_take(step_pages, num_blocks, caplog):
    layout = make_layout([FULL] * 2, block_size=4)
    sizes = layout.page_bytes * 100, layout.page_bytes * step_pages
    with caplog.at_level(logging.INFO, logger="deepinfer_core"):
        if num_blocks is None:
            with pytest.raises(OutOfDeviceMemoryError, match=r"max_num_batched_tokens"):
                choose(layout, *sizes, memory_fraction=0.5)
            return
        assert choose(layout, *sizes, memory_fraction=0.5) == num_blocks
    assert (
        f"at most what {int(sizes[1] * STEP_MARGIN):,} for steps leave, as measured" in caplog.text
    )
    assert choose(layout, *sizes, num_blocks=90) == 90


def test_no_pool_has_more_slots_than_int32_can_number():
    layout = make_layout([LayerKV("full", 1, 1, 1)], block_size=16)
    most = 2**31 // 16
    assert choose(layout, 2**40, memory_fraction=1.0) == most
    assert choose(layout, 2**40, num_blocks=most) == most
    with pytest.raises(ConfigError, match=f"at most {most}"):
        choose(layout, 2**40, num_blocks=most + 1)


@pytest.mark.parametrize(
    ("num_blocks", "free_pages"), [(None, 3), (10, 9)], ids=["fraction too small", "too many"]
)
def test_a_pool_that_does_not_fit_says_both_numbers(num_blocks, free_pages):
    layout = make_layout([FULL], block_size=4)
    free_bytes = layout.page_bytes * free_pages
    with pytest.raises(OutOfDeviceMemoryError, match=r"cache\.memory_fraction") as caught:
        choose(layout, free_bytes, num_blocks=num_blocks, memory_fraction=0.5)
    assert caught.value.free_bytes == free_bytes
    assert caught.value.wanted_bytes == layout.page_bytes * (num_blocks or 2)


def test_a_large_pool_takes_memory_only_where_it_is_written():
    layout = make_layout([FULL] * 4, block_size=16)
    before = psutil.Process().memory_info().rss
    pool = allocate_pool(layout, 2**30 // layout.page_bytes, torch.device("cpu"))
    pool[5] = 1
    assert psutil.Process().memory_info().rss - before < 2**27
    assert not pool[6].any()
