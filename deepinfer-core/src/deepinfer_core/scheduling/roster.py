"""Who is where, who has which row, and who gives up rows and blocks, exactly once.

    add ──> waiting ──start──> running ──end──> gone         (row and blocks given back)
               ^                │     │
               ├─ preempt, oust ┘     │ end, a step in flight
               └── settle ── settling ┴── settle ──> gone
                            ^
    preempt, a step in flight (blocks given back at once, the row kept)

Who is held when it is added waits once it is released. Who is ousted gives up its row too, once no
step in flight uses it, and waits as one without.
Followers of n > 1 stay attached to their leader until they fork (running) or are let go (waiting).
Knows no step plan; it is told which steps have settled.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from time import monotonic

from deepinfer_core.errors import IntegrityError, PromptTooLongError, RequestError
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.request import FinishReason, Request
from deepinfer_core.scheduling.entry import Entry, Place
from deepinfer_core.scheduling.policy import Policy
from deepinfer_core.scheduling.waiting import WaitingQueue

_KEY = attrgetter("key")


class Roster:
    """Places, rows and the finished requests that nobody has been told of."""

    def __init__(self, kv: KVManager, *, max_num_seqs: int, policy: Policy) -> None:
        self.entries: dict[int, Entry] = {}
        """Every request that is not gone, by id."""
        self.running: list[Entry] = []
        """In policy order."""
        self.waiting = WaitingQueue()
        self.settled_step_id = -1
        self.num_preemptions = 0
        """Since the start."""
        self._kv = kv
        self._policy = policy
        self._max_num_seqs = max_num_seqs
        self._settling: list[Entry] = []
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._row_frees: list[int] = []
        self._finished: list[Request] = []

    @property
    def row_is_free(self) -> bool:
        return bool(self._free_rows)

    @property
    def row_is_coming(self) -> bool:
        """A row will be free when steps in flight have settled."""
        return any(e.request.is_finished or e.gives_up_row for e in self._settling)

    @property
    def last_seated(self) -> Entry | None:
        """The last in policy order among running and waiting ones that have a row."""
        seated = [e for e in (self.waiting.last_seated(), *self.running[-1:]) if e is not None]
        return max(seated, key=_KEY, default=None)

    @property
    def num_leaving(self) -> int:
        """Finished, with a step in flight."""
        return sum(1 for entry in self._settling if entry.request.is_finished)

    def add(self, request: Request, *, is_held: bool = False) -> None:
        """Let a request and its followers wait, or hold them until `release`.

        Raises:
            RequestError: an empty prompt, no room for output, or added before; nothing changed.
        """
        for member in (request, *request.followers):
            _check_lengths(member)
            if member.request_id in self.entries or member.is_finished:
                raise RequestError(f"request {member.request_id} was added before")
        leader = self._enter(request)
        for follower in request.followers:
            entry = self._enter(follower)
            entry.place, entry.leader = Place.ATTACHED, leader
        if is_held:
            leader.place = Place.HELD
        else:
            self.waiting.push(leader)

    def release(self, entry: Entry) -> None:
        """Let a held entry wait."""
        if entry.place is Place.HELD:
            self.waiting.push(entry)

    def take_row(self, entry: Entry) -> bool:
        """Give an entry a row if it has none; False if none is free."""
        if entry.request.row < 0:
            if not self._free_rows:
                return False
            entry.request.row = self._free_rows.pop()
        return True

    def put_row_back(self, entry: Entry) -> None:
        """Undo `take_row`: the runner never heard of this row's new owner."""
        self._free_rows.append(entry.request.row)
        entry.request.row = -1

    def start(self, entry: Entry) -> None:
        """A waiting (popped) or attached entry runs; `join` it when the step is complete."""
        entry.place, entry.leader = Place.RUNNING, None
        entry.request.status = "running"

    def join(self, entries: list[Entry]) -> None:
        """Insert started entries into `running`."""
        for entry in entries:
            self.running.insert(bisect_left(self.running, entry.key, key=_KEY), entry)

    def preempt(self, entry: Entry) -> None:
        """Send a running entry back to waiting: it gives up blocks and keeps ids and row."""
        request = entry.request
        del self.running[bisect_left(self.running, entry.key, key=_KEY)]
        request.status = "waiting"
        request.num_computed_tokens = request.num_hit_tokens = entry.num_tokens_ready = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        # A step in flight may still write these blocks. Whoever gets them next writes in a later
        # step, which the device runs after it, and reads only what it wrote itself.
        self._kv.free(request)
        if self.is_in_flight(entry):
            # Its tokens in flight are still its own. It returns when they are here, so that no
            # commit can mistake what an earlier stay computed for the present one.
            entry.place = Place.SETTLING
            self._settling.append(entry)
        else:
            self._wait(entry)

    def oust(self, entry: Entry) -> None:
        """Take the row of a running or waiting entry, and its blocks. It keeps its ids."""
        entry.gives_up_row = True
        if entry.place is Place.RUNNING:
            self.preempt(entry)
        else:
            self.waiting.unseat(entry)
            self._wait(entry)

    def end(
        self,
        entry: Entry,
        reason: FinishReason,
        *,
        stop_reason: int | str | None = None,
        error: RequestError | None = None,
    ) -> None:
        """Finish an entry wherever it is. In flight, it keeps row and blocks until settled."""
        request, place = entry.request, entry.place
        request.status, request.finish_reason = "finished", reason
        request.stop_reason, request.error = stop_reason, error
        request.finish_time_s = monotonic()
        request.num_in_flight_tokens = 0
        self._finished.append(request)
        if entry.leader is not None:
            entry.leader.request.followers.remove(request)
        if request.followers:
            self._promote_follower(entry)
        if place is Place.RUNNING:
            del self.running[bisect_left(self.running, entry.key, key=_KEY)]
            if self.is_in_flight(entry):
                entry.place = Place.SETTLING
                self._settling.append(entry)
        if entry.place is not Place.SETTLING:
            self._leave(entry)
            if place is Place.WAITING:
                self.waiting.note_stale()

    def let_go(self, follower: Entry) -> None:
        """A follower that can't fork waits like any other request."""
        follower.leader = None
        self.waiting.push(follower)

    def settle(self) -> None:
        """Move on those whose last step has settled (see `settled_step_id`)."""
        arrived = [entry for entry in self._settling if not self.is_in_flight(entry)]
        if not arrived:
            return
        self._settling = [entry for entry in self._settling if self.is_in_flight(entry)]
        for entry in arrived:
            if entry.request.is_finished:
                self._leave(entry)
            else:
                self._wait(entry)

    def is_in_flight(self, entry: Entry) -> bool:
        return entry.last_step_id > self.settled_step_id

    def take_finished(self) -> list[Request]:
        """Requests that finished since the last call, each exactly once."""
        finished, self._finished = self._finished, []
        return finished

    def take_row_frees(self) -> list[int]:
        """Rows given back since the last call."""
        row_frees, self._row_frees = self._row_frees, []
        return row_frees

    @property
    def has_unreported(self) -> bool:
        return bool(self._finished)

    def check_integrity(self) -> None:
        """Compare places, rows and counters.

        Raises:
            IntegrityError: with the arithmetic.
        """
        rows = sorted(
            [
                *self._free_rows,
                *(e.request.row for e in self.entries.values() if e.request.row >= 0),
            ]
        )
        if rows != list(range(self._max_num_seqs)):
            raise IntegrityError(
                f"free and held rows are {rows}, not 0 .. {self._max_num_seqs - 1}"
            )
        places = [entry.place for entry in self.entries.values()]
        counts = {
            Place.WAITING: len(self.waiting),
            Place.RUNNING: len(self.running),
            Place.SETTLING: len(self._settling),
            Place.ATTACHED: sum(len(e.request.followers) for e in self.entries.values()),
        }
        for place, count in counts.items():
            if places.count(place) != count:
                raise IntegrityError(
                    f"{places.count(place)} requests are {place.name}, {count} are listed"
                )
        if self.running != sorted(self.running, key=_KEY):
            raise IntegrityError("running requests are out of policy order")
        for entry in self.entries.values():
            _check_entry(entry)

    def _enter(self, request: Request) -> Entry:
        entry = self.entries[request.request_id] = Entry(request, self._policy.key(request))
        return entry

    def _wait(self, entry: Entry) -> None:
        """Queue an entry that no step in flight knows."""
        if entry.gives_up_row:
            entry.gives_up_row = False
            self._give_row_back(entry.request)
        self.waiting.push(entry)

    def _leave(self, entry: Entry) -> None:
        request = entry.request
        entry.place = Place.GONE
        self._kv.free(request)
        if request.row >= 0:
            self._give_row_back(request)
        del self.entries[request.request_id]

    def _give_row_back(self, request: Request) -> None:
        self._free_rows.append(request.row)
        self._row_frees.append(request.row)
        request.row = -1

    def _promote_follower(self, leader: Entry) -> None:
        """The leader ended before the fork: its first follower computes the prompt for the rest."""
        request = leader.request
        heir, *rest = request.followers
        request.followers, heir.followers = [], rest
        heir.wants_prompt_logprobs = request.wants_prompt_logprobs
        entry = self.entries[heir.request_id]
        entry.want_prompt_logprobs()
        for follower in rest:
            self.entries[follower.request_id].leader = entry
        if leader.place is Place.HELD:
            entry.place, entry.leader = Place.HELD, None
        else:
            self.let_go(entry)


def _check_lengths(request: Request) -> None:
    if not request.prompt_token_ids:
        raise RequestError("the prompt is empty; give at least one token", field="prompt_token_ids")
    if request.max_total_tokens <= request.num_prompt_tokens:
        raise PromptTooLongError(
            f"a prompt of {request.num_prompt_tokens} tokens leaves no room for output within "
            f"{request.max_total_tokens} tokens; shorten it",
            field="prompt_token_ids",
        )


def _check_entry(entry: Entry) -> None:
    request = entry.request
    if request.is_finished:
        return
    if entry.num_tokens != request.num_tokens:
        raise IntegrityError(
            f"request {entry.request_id} has {request.num_tokens} tokens, "
            f"the scheduler counts {entry.num_tokens}"
        )
    if entry.place is not Place.RUNNING and (request.num_computed_tokens or request.num_hit_tokens):
        raise IntegrityError(
            f"request {entry.request_id} is {entry.place.name} with "
            f"{request.num_computed_tokens} computed tokens"
        )
    if not request.num_computed_tokens < entry.num_tokens <= entry.max_total_tokens:
        raise IntegrityError(
            f"request {entry.request_id}: {request.num_computed_tokens} computed tokens, "
            f"{entry.num_tokens} tokens, limit {entry.max_total_tokens}"
        )
