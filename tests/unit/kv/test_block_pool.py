"""The pool against a model of plain lists, and each way in which its books can be cooked."""

from __future__ import annotations

import pytest
from deepinfer_core.errors import ConfigError, IntegrityError
from deepinfer_core.kv.block_pool import BlockEvent, BlockPool
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

NUM_BLOCKS = 7


class PoolMachine(RuleBasedStateMachine):
    """The free list as a Python list, reuse from its front."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[BlockEvent] = []
        self.pool = BlockPool(NUM_BLOCKS, listener=self.events.append)
        self.free = list(range(1, NUM_BLOCKS))
        self.refs: dict[int, int] = {}
        self.cached: dict[bytes, int] = {}
        self.replayed: dict[bytes, int] = {}

    @precondition(lambda self: self.free)
    @rule()
    def allocate(self) -> None:
        block = self.free.pop(0)
        self.cached = {digest: b for digest, b in self.cached.items() if b != block}
        self.refs[block] = 1
        assert self.pool.allocate() == block

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.refs)))
        self.refs[block] -= 1
        self.pool.free(block)
        if self.refs[block] == 0:
            del self.refs[block]
            if block in self.cached.values():
                self.free.append(block)
            else:
                self.free.insert(0, block)

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        block = self.cached[data.draw(st.sampled_from(sorted(self.cached)))]
        if block in self.free:
            self.free.remove(block)
        self.refs[block] = self.refs.get(block, 0) + 1
        self.pool.touch(block)

    @precondition(lambda self: self.refs)
    @rule(data=st.data(), name=st.integers(0, 9))
    def store(self, data: st.DataObject, name: int) -> None:
        block, digest = data.draw(st.sampled_from(sorted(self.refs))), b"%d" % name
        is_new = digest not in self.cached and block not in self.cached.values()
        if is_new:
            self.cached[digest] = block
        assert self.pool.store(block, digest) == is_new

    @rule()
    def clear(self) -> None:
        self.cached.clear()
        self.pool.clear()

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_free_blocks == len(self.free)
        assert self.pool.cached_blocks == self.cached
        assert {b: n for b, n in enumerate(self.pool.ref_counts) if n} == self.refs

    @invariant()
    def events_tell_what_is_cached(self) -> None:
        for event in self.events:
            if event.kind == "stored":
                self.replayed[event.digest] = event.block_id
            elif event.kind == "removed":
                assert self.replayed.pop(event.digest) == event.block_id
            else:
                self.replayed.clear()
        self.events.clear()
        assert self.replayed == self.cached


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(4)
    assert sorted(pool.allocate() for _ in range(3)) == [1, 2, 3]
    with pytest.raises(IntegrityError, match="no free block among 4"):
        pool.allocate()


def test_a_pool_needs_a_block_besides_the_null_block() -> None:
    with pytest.raises(ConfigError, match="num_blocks = 1"):
        BlockPool(1)


def test_a_block_cannot_be_freed_twice() -> None:
    pool = BlockPool(3)
    block = pool.allocate()
    pool.free(block)
    with pytest.raises(IntegrityError, match=f"block {block} freed with 0 references"):
        pool.free(block)


def test_blocks_without_a_digest_are_reused_first() -> None:
    pool = BlockPool(4)
    named, nameless = pool.allocate(), pool.allocate()
    pool.store(named, b"x")
    pool.free(named)
    pool.free(nameless)
    assert pool.allocate() == nameless
    assert pool.cached_blocks == {b"x": named}


def corrupt_count(pool: BlockPool) -> None:
    pool.num_free_blocks += 1


def corrupt_refs(pool: BlockPool) -> None:
    pool.ref_counts[pool._next[0]] = 1


def corrupt_links(pool: BlockPool) -> None:
    pool._previous[pool._next[0]] = 3


def corrupt_digest(pool: BlockPool) -> None:
    pool.cached_blocks[b"other"] = 2


def leak(pool: BlockPool) -> None:
    pool.ref_counts[1] = 0


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (corrupt_count, r"3 listed free \(counter 4\) \+ 1 used \+ 1 null"),
        (corrupt_refs, r"3 listed free \(counter 3\) \+ 2 used \+ 1 null != 5 blocks"),
        (corrupt_links, "torn"),
        (corrupt_digest, "1 blocks carry digests, 2 are indexed"),
        (leak, r"3 listed free \(counter 3\) \+ 0 used \+ 1 null != 5 blocks"),
    ],
)
def test_cooked_books_are_found(corrupt: object, message: str) -> None:
    pool = BlockPool(5)
    pool.store(pool.allocate(), b"x")
    pool.check_integrity()
    corrupt(pool)  # type: ignore[operator]
    with pytest.raises(IntegrityError, match=message):
        pool.check_integrity()
