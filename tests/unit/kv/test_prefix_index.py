"""Digests that mean the same everywhere, and hits that every group can serve."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from deepinfer_core.kv.layout import LayerKV, LayoutGroup, make_layout
from deepinfer_core.kv.prefix_index import BlockHasher, PrefixIndex, first_live_block
from deepinfer_core.ops.records import Record
from deepinfer_core.request import Request
from deepinfer_core.sampling_params import SamplingParams
from hypothesis import given
from hypothesis import strategies as st

FULL = LayerKV("full", 2, 8, 4)
PARAMS = SamplingParams()


def make_request(num_tokens: int) -> Request:
    return Request(0, list(range(num_tokens)), PARAMS, 0, frozenset(), 10_000)


def test_digests_do_not_depend_on_process_or_machine() -> None:
    """A golden value: another one would make every stored cache worthless."""
    (group,) = make_layout([FULL], block_size=4).groups
    hasher = BlockHasher(group)
    first = hasher.extend(hasher.root, [1, 2, 3, 70000])
    second = hasher.extend(first, [0, 0, 0, 0])
    assert first.hex()[:16] == "96c2c2a77fc4e2d8"
    assert second.hex()[:16] == "4177aadc80b39b39"
    little_endian = bytes.fromhex("01000000020000000300000070110100")
    assert first == blake2b(hasher.root + little_endian, digest_size=32).digest()


@pytest.mark.parametrize(
    "layers",
    [
        [LayerKV("full", 2, 8, 2)],
        [LayerKV("full", 4, 8, 4)],
        [LayerKV("full", 2, 16, 4)],
        [LayerKV("window", 2, 8, 4, 16)],
        [LayerKV("full", 2, 8, 4, num_planes=1)],
        [LayerKV("full", 2, 8, 4, dtype="float32")],
        [LayerKV("full", 2, 8, 4, record=Record("584", 8))],
        [LayerKV("full", 2, 8, 4, record=Record("584", 8, tail=4))],
        [FULL, FULL],
    ],
)
def test_groups_that_store_other_things_never_share_digests(layers: list[LayerKV]) -> None:
    ours = BlockHasher(make_layout([FULL], block_size=4).groups[0])
    theirs = BlockHasher(make_layout(layers, block_size=4).groups[0])
    assert ours.root != theirs.root


def test_block_size_is_part_of_the_digest() -> None:
    roots = {BlockHasher(make_layout([FULL], block_size=n).groups[0]).root for n in (4, 8, 16)}
    assert len(roots) == 3


def test_a_digest_names_everything_before_it() -> None:
    hasher = BlockHasher(make_layout([FULL], block_size=2).groups[0])
    one = hasher.extend(hasher.extend(hasher.root, [1, 2]), [5, 6])
    other = hasher.extend(hasher.extend(hasher.root, [1, 3]), [5, 6])
    assert one != other


def test_each_block_is_hashed_once() -> None:
    index = PrefixIndex(make_layout([FULL], block_size=4), {})
    request, digests = make_request(40), []
    last = index.digest(request, digests, 0, 9)
    assert len(digests) == 10
    first = list(digests)
    request.prompt_token_ids[0] = 99
    assert index.digest(request, digests, 0, 9) == last
    assert digests == first


def test_a_digest_spans_prompt_and_output() -> None:
    index = PrefixIndex(make_layout([FULL], block_size=4), {})
    split = make_request(6)
    split.prompt_token_ids, split.output_token_ids = [0, 1, 2], [3, 4, 5, 6, 7]
    assert index.digest(split, [], 0, 1) == index.digest(make_request(8), [], 0, 1)


@pytest.mark.parametrize(
    ("window_size", "position", "block"),
    [(None, 100, 0), (1, 8, 2), (4, 0, 0), (4, 3, 0), (4, 7, 1), (4, 6, 0), (5, 8, 1), (6, 8, 0)],
)
def test_first_live_block(window_size: int | None, position: int, block: int) -> None:
    layer = LayerKV("window" if window_size else "full", 1, 1, 1, window_size)
    group = LayoutGroup(layer.kind, (0,), (layer,), 4)
    assert first_live_block(group, position) == block


@given(st.sampled_from([1, 2, 3, 5, 8, 9, 17, 100]), st.integers(0, 60), st.data())
def test_a_window_block_serves_some_hit_or_none(
    window_size: int, block: int, data: st.DataObject
) -> None:
    num_full, num_windows = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 40))
    layers = [FULL] * num_full + [LayerKV("window", 2, 8, 4, window_size)] * num_windows
    layout = make_layout(layers, block_size=data.draw(st.sampled_from([1, 4, 6])))
    _, group = layout.groups
    granularity, end = layout.hit_granularity, (block + 1) * group.block_size
    hits = range(granularity, end + window_size + 2 * granularity, granularity)
    serves = any(
        max(0, hit - window_size + 1) < hit
        and max(0, hit - window_size + 1) // group.block_size <= block < hit // group.block_size
        for hit in hits
    )
    index = PrefixIndex(layout, {})
    assert index.can_serve(1, block) == serves
    assert index.can_serve(0, block)


def brute_force(groups: list[LayoutGroup], present: list[set[int]], limit: int, step: int) -> int:
    """The definition: try every length, longest first."""
    if not any(group.needed_by_hits for group in groups):
        return 0
    for hit in range(limit - limit % step, 0, -step):
        needs = []
        for group in groups:
            if not group.needed_by_hits:
                needs.append(set())
                continue
            first = 0 if group.window_size is None else max(0, hit - group.window_size + 1)
            needs.append({position // group.block_size for position in range(first, hit)})
        if all(need <= have for need, have in zip(needs, present, strict=True)):
            return hit
    return 0


@given(st.data())
def test_a_match_is_the_longest_that_every_group_serves(data: st.DataObject) -> None:
    windows = data.draw(
        st.lists(st.sampled_from([None, 1, 3, 4, 5, 9, 20]), min_size=1, max_size=3)
    )
    unneeded = data.draw(st.sampled_from(windows))
    copies = data.draw(st.lists(st.integers(1, 3), min_size=len(windows), max_size=len(windows)))
    layers = [
        LayerKV(
            "window" if window else "full",
            1 + index,
            1,
            1,
            window,
            needed_by_hits=not window or window != unneeded,
        )
        for index, (window, count) in enumerate(zip(windows, copies, strict=True))
        for _ in range(count)
    ]
    layout = make_layout(layers, block_size=data.draw(st.sampled_from([1, 2, 4])))
    request = make_request(data.draw(st.integers(1, 60)))
    cached: dict[bytes, int] = {}
    index = PrefixIndex(layout, cached)
    present: list[set[int]] = []
    for g, group in enumerate(layout.groups):
        num_full = request.num_prompt_tokens // group.block_size
        missing = data.draw(st.sets(st.integers(0, max(0, num_full - 1)), max_size=3))
        present.append(set(range(num_full)) - missing)
        digests: list[bytes] = []
        for block in present[-1]:
            cached[index.digest(request, digests, g, block)] = 1
    limit = request.num_prompt_tokens - 1
    hit = index.match(request, [[] for _ in layout.groups], limit)
    assert hit == brute_force(list(layout.groups), present, limit, layout.hit_granularity)
