"""A runner without a model: memory slots hold the token prefix that they were computed from.

It executes plans in stream order, the moment they are submitted, and trusts nothing: every read
slot must hold the prefix it stands for, every written slot must have one owner, and every id in a
plan must be the one that the device knows. Tokens follow from what was read, the seed, the sample
index and the position, so wrong cache content becomes a wrong answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from struct import pack

from deepinfer_core.kv.layout import KVLayout, LayoutGroup
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.kv.prefix_index import BlockHasher
from deepinfer_core.request import Request
from deepinfer_core.scheduling.plan import (
    UNKNOWN_TOKEN_ID,
    PromptLogprobsPlan,
    RowStart,
    StepOutput,
    StepPlan,
    TokenLogprobs,
)

MASK = 2**64 - 1
EOS, STOP_ID, ERROR = 0, 1, 2
"""ERROR stands for an empty support, but only in rows with bad words."""
VOCAB = 23
STOP_PAIR = 5
"""Two tokens whose sum is this modulo VOCAB stand for a stop string; the edge cuts before them."""


def extend(prefix: int, token_id: int) -> int:
    """Name of a token prefix: a rolling hash."""
    mixed = ((prefix ^ (token_id + 1)) * 0x9E3779B97F4A7C15) & MASK
    return mixed ^ (mixed >> 29)


def draw(prefix: int, seed: int, sample_index: int, position: int) -> int:
    mixed = extend(extend(extend(prefix, seed), sample_index), position)
    return (mixed >> 17) % VOCAB


@dataclass
class Row:
    start: RowStart
    token_ids: list[int]
    prefixes: list[int] = field(default_factory=list)
    """Name of the prefix that ends at each position; what its slots must hold."""
    tables: dict[int, list[int]] = field(default_factory=dict)

    def prefix(self, position: int) -> int:
        while len(self.prefixes) <= position:
            before = self.prefixes[-1] if self.prefixes else 0
            self.prefixes.append(extend(before, self.token_ids[len(self.prefixes)]))
        return self.prefixes[position]

    def cut(self, num_tokens: int) -> None:
        del self.token_ids[num_tokens:], self.prefixes[num_tokens:]


class FakeRunner:
    """Executes plans; see the module."""

    def __init__(self, layout: KVLayout, kv: KVManager) -> None:
        self.groups, self.num_replay_tokens = layout.groups, layout.num_replay_tokens
        self.kv = kv
        most = max(group.block_size for group in self.groups)
        self.memory: list[list[object]] = [[None] * most for _ in range(kv.pool.num_blocks)]
        self.rows: dict[int, Row] = {}
        self.delivered: dict[int, int] = {}
        """Row -> tokens that the host knows."""
        self.drafted: dict[int, int] = {}
        """Row -> drafts at the end of its ids, while a step with them is computed."""
        self.digests = {
            (g, 0): BlockHasher(group, layout.num_replay_tokens).root
            for g, group in enumerate(self.groups)
        }
        """(group, prefix name) -> digest of the block that ends there, computed independently."""
        self.named: dict[bytes, tuple[int, int]] = {}
        self.parents: dict[int, int] = {}

    def submit(self, plan: StepPlan) -> StepOutput:
        prompt_logprobs = self.compute(plan)
        ends = [
            first + count
            for first, count in zip(
                plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True
            )
        ]
        return self._sample(plan, ends, prompt_logprobs)

    def compute(self, plan: StepPlan) -> list[list[TokenLogprobs]]:
        """Everything but the draw, as in a step whose logits find no memory."""
        self._check_shape(plan)
        for row_id, count in self.drafted.items():  # of a step that found no memory
            self.rows[row_id].cut(len(self.rows[row_id].token_ids) - count)
        self.drafted = {
            plan.rows[plan.sample_sources[index]]: count for index, count in plan.num_drafts.items()
        }
        for row in plan.row_frees:
            del self.rows[row]
        for start in plan.row_starts:
            assert start.row not in self.rows
            self.rows[start.row] = Row(start, [*start.prompt_token_ids, *start.output_token_ids])
            self.delivered[start.row] = len(self.rows[start.row].token_ids)
        for update in plan.block_updates:
            table = self.rows[update.row].tables.setdefault(update.group, [])
            assert update.first_index <= len(table)
            table[update.first_index :] = update.block_ids
        for source, target in plan.block_copies:
            self.memory[target] = list(self.memory[source])
        begin, hits = 0, dict(plan.replays)
        for index, (row_id, first, count) in enumerate(
            zip(plan.rows, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True)
        ):
            # A leader writes the end of the prompt in the step in which its followers join.
            num_owners = max(1, plan.sample_sources.count(index))
            token_ids = plan.token_ids[begin : begin + count]
            self._compute(row_id, first, token_ids, num_owners, hits.get(index, 0))
            begin += count
        return [self._prompt_logprobs(plan, wanted) for wanted in plan.prompt_logprobs]

    @staticmethod
    def _check_shape(plan: StepPlan) -> None:
        assert sum(plan.num_scheduled_tokens) == len(plan.token_ids)
        assert min(plan.num_scheduled_tokens) >= 1
        assert len(set(plan.rows)) == len(plan.rows) == len(plan.request_ids)
        assert len(set(plan.sample_rows)) == len(plan.sample_rows)
        assert len(set(plan.row_frees)) == len(plan.row_frees)
        assert len({(u.row, u.group) for u in plan.block_updates}) == len(plan.block_updates)
        targets = [target for _, target in plan.block_copies]
        sources = {source for source, _ in plan.block_copies}
        assert len(set(targets)) == len(targets) and not sources & set(targets)
        assert 0 not in targets and 0 not in sources

    def _compute(
        self, row_id: int, first: int, token_ids: list[int], num_owners: int, num_hit: int
    ) -> None:
        """`num_hit` is 0 unless some of these tokens are computed again behind a prefix hit."""
        row, ref_counts = self.rows[row_id], self.kv.pool.ref_counts
        num_known = self.delivered[row_id]
        if num_drafts := self.drafted.get(row_id, 0):
            assert first + len(token_ids) - num_drafts == num_known == len(row.token_ids)
            row.token_ids += token_ids[-num_drafts:]
            num_known += num_drafts
        for position, token_id in enumerate(token_ids, start=first):
            in_flight = position >= num_known
            expected = UNKNOWN_TOKEN_ID if in_flight else row.token_ids[position]
            assert token_id == expected, (position, token_id, expected)
            self.parents[row.prefix(position)] = row.prefix(position - 1) if position else 0
        for g, group in enumerate(self.groups):
            table, size = row.tables[g], group.block_size
            # A replay writes nothing that is cached, and reads nothing of a window before itself.
            is_kept = group.window_size is None
            for position in range(max(first, num_hit * is_kept), first + len(token_ids)):
                block = table[position // size]
                assert block != 0, "written into the null block"
                assert ref_counts[block] == num_owners, "written into a shared block"
                assert self.kv.pool._digests[block] is None, "written into an indexed block"
                self.memory[block][position % size] = (g, row.prefix(position))
                if position % size == size - 1:
                    self._expect_digest(g, row, position + 1 - size, position + 1)
            start = 0 if is_kept else num_hit - self.num_replay_tokens
            for position in range(
                max(first_read(group, first, self.num_replay_tokens), start), first + len(token_ids)
            ):
                held = self.memory[table[position // size]][position % size]
                assert held == (g, row.prefix(position)), f"group {g} read {held} at {position}"

    def _expect_digest(self, g: int, row: Row, begin: int, end: int) -> None:
        key = (g, row.prefix(end - 1))
        if key not in self.digests:
            parent = self.digests[g, row.prefix(begin - 1) if begin else 0]
            content = pack(f"<{end - begin}i", *row.token_ids[begin:end])
            self.digests[key] = digest = blake2b(parent + content, digest_size=32).digest()
            self.named[digest] = key

    def check_cached(self, block: int, digest: bytes) -> None:
        """An indexed block holds what its digest says."""
        assert digest in self.named, "nobody computed such a block"
        g, prefix = self.named[digest]
        size = self.groups[g].block_size
        for offset in range(size - 1, -1, -1):
            assert self.memory[block][offset] == (g, prefix)
            prefix = self.parents[prefix]

    def _prompt_logprobs(self, plan: StepPlan, wanted: PromptLogprobsPlan) -> list[TokenLogprobs]:
        row, first = self.rows[plan.rows[wanted.index]], plan.num_computed_tokens[wanted.index]
        targets = list(wanted.target_token_ids)
        assert 1 <= len(targets) <= plan.num_scheduled_tokens[wanted.index]
        assert targets == list(row.start.prompt_token_ids)[first + 1 : first + 1 + len(targets)]
        return [logprobs_of(token, row.prefix(p)) for p, token in enumerate(targets, start=first)]

    def _sample(
        self, plan: StepPlan, ends: list[int], prompt_logprobs: list[list[TokenLogprobs]]
    ) -> StepOutput:
        output = StepOutput([], [], prompt_logprobs)
        assert output.logprobs is not None
        for index, (row_id, source, position) in enumerate(
            zip(plan.sample_rows, plan.sample_sources, plan.sample_positions, strict=True)
        ):
            row = self.rows[row_id]
            num_drafts = plan.num_drafts.get(index, 0)
            assert num_drafts == self.drafted.pop(row_id, 0)
            assert position == ends[source] - num_drafts == len(row.token_ids) - num_drafts
            prefix = self.rows[plan.rows[source]].prefix(position - 1)
            assert prefix == row.prefix(position - 1), "drew from another prefix's logits"
            token_ids, logprobs = self._draw(row, position, num_drafts, output.errors, index)
            output.token_ids.append(token_ids)
            output.logprobs.append(None if row.start.params.logprobs is None else logprobs)
        assert not self.drafted
        if all(entry is None for entry in output.logprobs):
            output.logprobs = None
        return output

    @staticmethod
    def _draw(
        row: Row, position: int, num_drafts: int, errors: dict[int, str], index: int
    ) -> tuple[list[int], list[TokenLogprobs]]:
        """Draw behind the tokens and, as long as they are what is drawn, the drafts."""
        drafts = row.token_ids[position : position + num_drafts]
        token_ids: list[int] = []
        logprobs = []
        for draft in (*drafts, None):
            prefix = row.prefix(position - 1)
            token_id = draw(prefix, row.start.seed, row.start.sample_index, position)
            if is_error := token_id == ERROR and bool(row.start.params.bad_words):
                errors[index] = "nothing left to draw"
            else:
                token_ids.append(token_id)
                logprobs.append(logprobs_of(token_id, prefix))
            if is_error or token_id != draft:
                row.cut(position)
                row.token_ids.append(token_id)
                break
            position += 1
        return token_ids, logprobs

    def deliver(self, plan: StepPlan, output: StepOutput) -> None:
        """The host got a step's tokens."""
        for index, row_id in enumerate(plan.sample_rows):
            self.delivered[row_id] += len(output.token_ids[index]) + (index in output.errors)


def first_read(group: LayoutGroup, first: int, num_replay_tokens: int) -> int:
    """The first position that a step from `first` on reads.

    Where exact hits need nothing of a window, it holds groups of its size, of which one is open.
    """
    if group.window_size is None:
        return 0
    if not group.needed_by_hits and not num_replay_tokens:
        return first - first % group.window_size
    return max(0, first - group.window_size + 1)


def logprobs_of(token_id: int, prefix: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -float(prefix % 1000), 1)


@dataclass
class PlainAnswer:
    drawn: list[int]
    """Everything that was drawn; `token_ids` lacks the stop string."""
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    prompt_logprobs: list[TokenLogprobs]
    finish_reason: str
    stop_reason: int | str | None


def plain_run(request: Request) -> PlainAnswer:
    """What a request must answer, computed alone, without a scheduler or a cache."""
    prefix, before = 0, []
    for token_id in request.prompt_token_ids:
        before.append((prefix, token_id))
        prefix = extend(prefix, token_id)
    prompt_logprobs = [logprobs_of(token_id, name) for name, token_id in before[1:]]
    answer = PlainAnswer([], [], [], prompt_logprobs, "length", None)
    for position in range(request.num_prompt_tokens, request.max_total_tokens):
        token_id = draw(prefix, request.seed, request.sample_index, position)
        if token_id == ERROR and request.params.bad_words:
            answer.finish_reason = "error"
            break
        answer.drawn.append(token_id)
        answer.token_ids.append(token_id)
        answer.logprobs.append(logprobs_of(token_id, prefix))
        prefix = extend(prefix, token_id)
        if token_id in request.stop_token_ids:
            answer.finish_reason = "stop"
            answer.stop_reason = token_id if token_id == STOP_ID else None
            break
        if ends_with_stop_string(request, answer.token_ids):
            answer.finish_reason, answer.stop_reason = "stop", "pair"
            del answer.token_ids[-2:], answer.logprobs[-2:]
            break
    return answer


def ends_with_stop_string(request: Request, token_ids: list[int]) -> bool:
    return (
        bool(request.params.stop)
        and len(token_ids) >= 2
        and sum(token_ids[-2:]) % VOCAB == STOP_PAIR
    )
