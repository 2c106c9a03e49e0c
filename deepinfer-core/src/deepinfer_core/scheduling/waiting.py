"""The waiting requests: two heaps with lazy deletion, so that no step costs more with more waiting.

Those that hold a row (preempted ones) have a heap of their own: when no row is free, only they
can be admitted, and they must not hide behind one that needs a row which only they can free.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from operator import attrgetter

from deepinfer_core.scheduling.entry import Entry, Place

_Heap = list[tuple[tuple[int, ...], Entry]]
"""Keys are unique, so entries are never compared."""


class WaitingQueue:
    """Waiting entries in policy order."""

    __slots__ = ("_num_stale", "_seated", "_unseated")

    def __init__(self) -> None:
        self._seated: _Heap = []
        self._unseated: _Heap = []
        self._num_stale = 0

    def __len__(self) -> int:
        return len(self._seated) + len(self._unseated) - self._num_stale

    def push(self, entry: Entry) -> None:
        """Add an entry; its place becomes waiting."""
        entry.place = Place.WAITING
        heap = self._unseated if entry.request.row < 0 else self._seated
        heappush(heap, (entry.key, entry))

    def peek(self, *, row_is_free: bool) -> Entry | None:
        """The first in policy order that has a row or can get one."""
        seated = self._first(self._seated)
        unseated = self._first(self._unseated) if row_is_free else None
        if seated is None or unseated is None:
            return seated or unseated
        return seated if seated.key < unseated.key else unseated

    def pop(self, entry: Entry) -> None:
        """Remove what `peek` returned."""
        heap = self._unseated if entry.request.row < 0 else self._seated
        removed = heappop(heap)[1]
        assert removed is entry, "only the entry that peek returned can be popped"

    def last_seated(self) -> Entry | None:
        """The last in policy order among those with a row, who are at most as many as rows."""
        entries = [entry for _, entry in self._seated if entry.place is Place.WAITING]
        return max(entries, key=attrgetter("key"), default=None)

    def unseat(self, entry: Entry) -> None:
        """An entry with a row is about to lose it; `push` it again afterwards."""
        self._seated.remove((entry.key, entry))
        heapify(self._seated)

    def note_stale(self) -> None:
        """A queued entry's place is no longer waiting; it is dropped when met."""
        self._num_stale += 1
        if self._num_stale > len(self):
            for heap in (self._seated, self._unseated):
                heap[:] = [item for item in heap if item[1].place is Place.WAITING]
                heapify(heap)
            self._num_stale = 0

    def _first(self, heap: _Heap) -> Entry | None:
        while heap and heap[0][1].place is not Place.WAITING:
            heappop(heap)
            self._num_stale -= 1
        return heap[0][1] if heap else None
