"""Launches of sparse attention and its indexer, from shapes alone."""

import pytest
from deepinfer_cuda.heuristics_index import MAX_PICK_BLOCK, MAX_SHARES, pick_block, scores_launch
from deepinfer_cuda.heuristics_latent import INVARIANT_LISTS, rows_launch


def scores(num_queries, num_heads=64, dtype="bfloat16", **options):
    return scores_launch(num_queries, num_heads, 128, dtype, **{"is_shared": True} | options)


def test_a_tile_of_scores_has_whole_queries():
    for num_heads in (3, 16, 64, 128):
        launch = scores(4096, num_heads)
        assert launch.heads >= num_heads
        assert launch.queries * launch.heads <= max(128, launch.heads)
    assert scores(4096, 64).queries == 2
    assert scores(4096, 64, is_shared=False).queries == 1


def test_few_queries_share_their_keys_out_and_many_do_not():
    shares = [scores(count, is_shared=False).num_shares for count in (1, 8, 128, 4096)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == MAX_SHARES and shares[-1] == 1


def test_what_scores_are_of_depends_on_no_other_query():
    alone, among = (scores(count, is_shared=False) for count in (1, 4096))
    assert (alone.keys, alone.dims, alone.num_warps) == (among.keys, among.dims, among.num_warps)


@pytest.mark.parametrize(("num_scores", "block"), [(1, 16), (300, 512), (10**6, MAX_PICK_BLOCK)])
def test_blocks_of_scores_are_powers_of_two_and_bounded(num_scores, block):
    assert pick_block(num_scores) == block


def test_records_take_smaller_tiles_where_they_are_decoded_in_registers():
    plain, coded = (
        rows_launch(1, 128, 576, 512, "bfloat16", 12, invariant=False, is_coded=is_coded)
        for is_coded in (False, True)
    )
    assert coded.keys < plain.keys
    assert scores(1, is_decoded=True).keys < scores(1).keys


def test_lists_are_shared_out_the_same_in_any_batch_where_bits_must_not_depend_on_it():
    launches = {
        rows_launch(count, 128, 576, 512, "bfloat16", 9, invariant=True) for count in (1, 33, 4096)
    }
    (launch,) = launches
    assert launch.num_shares == INVARIANT_LISTS
