"""A scheduler over the fake runner, in one object per test."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
from deepinfer_core.kv.block_pool import BlockEvent
from deepinfer_core.kv.layout import KVLayout, LayerKV, make_layout
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.request import Request
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduling.drafting import DraftSource
from deepinfer_core.scheduling.entry import Entry
from deepinfer_core.scheduling.plan import StepOutput, StepPlan
from deepinfer_core.scheduling.scheduler import Scheduler, StepResult

from .fake_runner import STOP_ID, VOCAB, FakeRunner, ends_with_stop_string, plain_run


class Rehearsed(DraftSource):
    """Knows the answers and gets some tokens wrong, or proposes fewer than it could, or none."""

    def __init__(self, harness: Harness, num_drafts: int) -> None:
        super().__init__(num_drafts=num_drafts, costs=None)
        self.harness = harness
        self.rng = random.Random(num_drafts)
        self.num_lookahead_tokens = num_drafts // 2

    def _drafts_of(self, entry: Entry, index: int, output: StepOutput) -> list[int]:
        request, rng = entry.request, self.rng
        drawn = plain_run(request).drawn[request.num_output_tokens :]
        drafts = [*drawn, 0, 0, 0, 0][: rng.randint(0, self.num_drafts)]
        return [token_id if rng.random() < 0.8 else rng.randrange(VOCAB) for token_id in drafts]


class Harness:
    """A scheduler over a fake runner, checked after every step.

    `depth` steps stay in flight while one is scheduled: 0 is the plain loop, 1 overlaps.
    `fits` says for which plans there is memory.
    """

    def __init__(
        self,
        layout: KVLayout | None = None,
        *,
        num_blocks: int = 64,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 16,
        policy: str = "fcfs",
        prefix_caching: bool = True,
        depth: int = 0,
        fits: Callable[[StepPlan], bool] = lambda plan: True,
        num_drafts: int = 0,
    ) -> None:
        layout = layout or make_layout([LayerKV("full", 1, 1, 1)], block_size=4)
        self.stored: list[tuple[int, bytes]] = []
        self.kv = KVManager(
            layout, num_blocks, prefix_caching=prefix_caching, listener=self._on_event
        )
        self.scheduler = Scheduler(
            self.kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            policy=policy,
            drafts=Rehearsed(self, num_drafts) if num_drafts else None,
        )
        self.runner = FakeRunner(layout, self.kv)
        self.depth = depth
        self.fits = fits
        self.num_failed_steps = 0
        self.num_ousted = 0
        self.max_num_batched_tokens = max_num_batched_tokens
        self.flights: deque[tuple[StepPlan, StepOutput]] = deque()
        self.requests: list[Request] = []
        self.finished: list[Request] = []
        self.plans: list[StepPlan] = []
        self.next_id = 0

    def _on_event(self, event: BlockEvent) -> None:
        if event.kind == "stored":
            self.stored.append((event.block_id, event.digest))

    def request(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 6,
        n: int = 1,
        priority: int = 0,
        seed: int = 0,
        stop_token_ids: frozenset[int] = frozenset(),
        **params: object,
    ) -> list[Request]:
        """n requests that share a prompt; the first leads."""
        samples = [
            Request(
                request_id=self.next_id + index,
                prompt_token_ids=list(prompt),
                params=SamplingParams(
                    max_tokens=max_tokens,
                    stop_token_ids=tuple({STOP_ID} & stop_token_ids),
                    **params,
                ),
                seed=seed,
                stop_token_ids=stop_token_ids,
                max_total_tokens=len(prompt) + max_tokens,
                sample_index=index,
                priority=priority,
            )
            for index in range(n)
        ]
        self.next_id += n
        samples[0].followers = samples[1:]
        return samples

    def add(self, prompt: list[int], **options: object) -> list[Request]:
        samples = self.request(prompt, **options)  # type: ignore[arg-type]
        self.requests += samples
        self.scheduler.add(samples[0])
        return samples

    def step(self) -> StepPlan | None:
        """Schedule and launch one step, and commit the oldest once enough are in flight."""
        seated = [request for request in self.requests if request.row >= 0]
        plan = self.scheduler.schedule()
        self.num_ousted += sum(1 for request in seated if self._is_ousted(request))
        if plan is not None:
            assert len(plan.token_ids) <= self.max_num_batched_tokens
            if not self.fits(plan):
                self.runner.compute(plan)
                self.scheduler.roll_back(plan, "no memory")
                self.num_failed_steps += 1
                self.scheduler.check_integrity()
                return self.step()
            self.plans.append(plan)
            self.flights.append((plan, self.runner.submit(plan)))
        self.scheduler.check_integrity()
        if self.flights and (plan is None or len(self.flights) > self.depth):
            self.commit()
        elif plan is None:
            self._report(StepResult([], self.scheduler.take_finished()))
        return plan

    def _is_ousted(self, request: Request) -> bool:
        entry = self.scheduler._roster.entries.get(request.request_id)
        return entry is not None and (request.row < 0 or entry.gives_up_row)

    def commit(self) -> StepResult:
        plan, output = self.flights.popleft()
        self.runner.deliver(plan, output)
        result = self.scheduler.commit(plan, output)
        self._report(result)
        for request in result.updated:
            ended_by_id = request.finish_reason == "stop"  # whose text is no part of the answer
            ids = request.output_token_ids[: request.num_output_tokens - ended_by_id]
            ends = (n for n in range(2, len(ids) + 1) if ends_with_stop_string(request, ids[:n]))
            if (end := next(ends, None)) is not None:
                self.scheduler.finish(request, num_output_tokens=end - 2, stop_reason="pair")
        for block, digest in self.stored:
            if self.kv.pool.cached_blocks.get(digest) == block:
                self.runner.check_cached(block, digest)
        self.stored.clear()
        self.scheduler.check_integrity()
        return result

    def _report(self, result: StepResult) -> None:
        for request in result.finished:
            assert request.is_finished
            assert request not in self.finished, "reported twice"
            self.finished.append(request)

    def num_blocks(self, request: Request) -> int:
        held = self.kv._held.get(request.request_id)
        return 0 if held is None else len(list(held.live_blocks()))

    def run(self, *, max_steps: int | None = None) -> None:
        """Step until everything has ended, within a bound that liveness implies."""
        work = sum(r.max_total_tokens for r in self.requests if not r.is_finished)
        bound = max_steps or 3 * work + 40
        for _ in range(bound):
            if not self.scheduler.has_unfinished:
                break
            self.step()
        assert not self.scheduler.has_unfinished, f"not done after {bound} steps"
        self.check_idle()

    def check_idle(self) -> None:
        """Nothing is held and nobody is missing."""
        assert not self.flights
        self.scheduler.check_integrity()
        assert self.kv.stats().num_free_blocks == self.kv.pool.num_blocks - 1
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        assert sorted(r.request_id for r in self.finished) == sorted(
            r.request_id for r in self.requests
        )

    def _check_answer(self, request: Request) -> None:
        """A request's answer is the plain run's, or its beginning if it was ended early."""
        plain = plain_run(request)
        count = request.num_output_tokens
        assert request.is_finished and request.num_in_flight_tokens == 0
        assert request.output_token_ids == plain.drawn[:count]
        if request.params.logprobs is not None:
            assert len(request.logprobs) == count
            assert request.logprobs[: len(plain.logprobs)] == plain.logprobs[:count]
        delivered = len(request.prompt_logprobs)
        assert request.prompt_logprobs == plain.prompt_logprobs[:delivered]
        if request.finish_reason == "abort":
            return
        if request.finish_reason == "error" and "memory ran out" in str(request.error):
            return
        if request.finish_reason == "error" and "KV cache" in str(request.error):
            assert request.num_prompt_tokens + count >= self.kv.max_tokens_of_pool
            return
        assert request.finish_reason == plain.finish_reason
        assert request.stop_reason == plain.stop_reason
        assert count == len(plain.token_ids)
        if request.wants_prompt_logprobs:
            assert delivered == request.num_prompt_tokens - 1

    def check_answers(self) -> None:
        for request in self.requests:
            self._check_answer(request)


@pytest.fixture
def harness() -> type[Harness]:
    return Harness
