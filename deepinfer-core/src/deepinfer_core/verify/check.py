"""Runs the cases plainly and at points, and compares.

INVARIANT: a point differs from the plain run only in what `Point` says; model, kernels and
parameters are the same objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from deepinfer_core.config import EngineConfig, nest_fields
from deepinfer_core.engine import Engine
from deepinfer_core.engine_setup import LoadedModel
from deepinfer_core.kv.layout import make_layout
from deepinfer_core.models.drafters.interface import Drafter
from deepinfer_core.models.interface import history_len_of
from deepinfer_core.plugin_api.proposer import Proposer
from deepinfer_core.request import Request
from deepinfer_core.scheduling.plan import TokenLogprobs
from deepinfer_core.verify.cases import (
    NUM_SAMPLES,
    OWN,
    REHEARSED,
    TWIN,
    Case,
    Point,
    stop_end,
    with_samples,
)
from deepinfer_core.verify.rehearsal import HOST_PROPOSERS, MadeUpCosts, Rehearsed, Twin

BLOCK_SIZE_OF_PLAIN_RUN = 16
FORCED_PREEMPTION_STEPS = 4
"""With preemption on, one running request is sent back every so many steps ..."""
SURE = 12
"""Drafts of known answers, of which some must be accepted."""
MAX_PREEMPTIONS = 3
"""... unless it was sent back this often: small chunks would never reach the prompt's end."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one sample gave."""

    token_ids: tuple[int, ...]
    reason: tuple[str | None, int | str | None]
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...]

    @classmethod
    def of(cls, request: Request) -> Sample:
        return cls(
            tuple(request.output_token_ids),
            (request.finish_reason, request.stop_reason),
            tuple(request.logprobs),
            tuple(request.prompt_logprobs),
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where an output leaves the plain run's."""

    case: int
    sample: int
    what: str
    position: int
    gap: float | None
    """Log-probability between the plain run's two most likely tokens there."""


@dataclass(slots=True)
class PointResult:
    """How one point compares. `num_close` are differences that the bound excuses."""

    point: Point
    num_equal: int = 0
    num_close: int = 0
    num_different: int = 0
    num_hit_tokens: int = 0
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    differences: list[Difference] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What the point was to exercise and did not."""

    @property
    def passed(self) -> bool:
        return not self.num_different and not self.problems


class Verifier:
    """Compares points with the plain run of the same cases.

    Args:
        loaded: a model in place.
        cases: what to run.
        bound: None demands equal bits; else a greedy answer may leave the plain run's where the
            log-probabilities of its two most likely tokens are this close.
    """

    def __init__(
        self,
        config: EngineConfig,
        loaded: LoadedModel,
        cases: Sequence[Case],
        *,
        bound: float | None,
    ) -> None:
        self._config = config
        self._loaded = loaded
        self._cases = cases
        self._bound = bound
        self.longest = max(case.max_total_tokens for case in cases)
        self._plain: list[list[Sample]] = []

    @property
    def num_cases(self) -> int:
        return len(self._cases)

    def random_point(self, seed: int, index: int) -> Point:
        """The combination that belongs to a seed and an index."""
        return Point.random(
            seed, index, self.longest, num_cases=self.num_cases, drafters=self._drafters()
        )

    def _drafters(self) -> list[str]:
        """Who can guess on the device."""
        own = [OWN] if self._loaded.drafter is not None else []
        return own if history_len_of(self._loaded.model) else [TWIN, *own]

    def run_plain(self) -> Iterator[int]:
        """Run every case alone; yields the number done. Call before `run_point`."""
        point = Point.plain(self.longest, block_size=BLOCK_SIZE_OF_PLAIN_RUN)
        for case in self._cases:
            engine = self._engine(point)
            requests = engine.add(
                case.prompt_token_ids, with_samples(case, NUM_SAMPLES), images=case.images
            )
            while engine.has_unfinished:
                _advance(engine, dict.fromkeys(requests, case))
            self._plain.append([Sample.of(request) for request in requests])
            yield len(self._plain)

    def run_point(self, point: Point, seed: int) -> PointResult:
        """Run all cases under one combination, with the cache on a second time, and compare."""
        engine, result = self._engine(point), PointResult(point)
        rng = Random(f"arrivals-{seed}-{point.index}")
        for _ in range(2 if point.prefix_cache else 1):
            for case, requests in self._run_all(engine, point, rng).items():
                for index, request in enumerate(requests):
                    if request.finish_reason != "abort":
                        wanted = self._wanted(case, index, requests)
                        self._compare(result, (case, index), wanted, Sample.of(request))
        engine.check_integrity()
        counters = engine.metrics()
        result.num_hit_tokens = counters["num_hit_tokens"]
        result.num_preemptions = counters["num_preemptions"]
        result.num_draft_tokens = counters.get("num_draft_tokens", 0)
        result.num_accepted_tokens = counters.get("num_accepted_tokens", 0)
        if point.prefix_cache and not result.num_hit_tokens:
            result.problems.append("the prefix cache was on and nothing hit")
        if point.preemption and not result.num_preemptions:
            result.problems.append("preemption was on and nothing was preempted")
        is_sure = point.proposer == REHEARSED or (point.proposer == TWIN and self._is_free(point))
        is_sure = is_sure and result.num_draft_tokens > SURE
        if is_sure and not result.num_accepted_tokens:
            result.problems.append("answers were drafted and no draft was accepted")
        return result

    def _is_free(self, point: Point) -> bool:
        """No case has a form, of which the model itself knows nothing."""
        return all(self._cases[case].belongs is None for case in self._order(point))

    def _order(self, point: Point) -> list[int]:
        return list(range(len(self._cases)) if point.cases is None else point.cases)

    def _wanted(self, case: int, index: int, requests: Sequence[Request]) -> Sample:
        """What the plain run has of a sample, which may deliver for one that was given up."""
        plain = self._plain[case][index]
        if requests[0].finish_reason != "abort" or not requests[index].prompt_logprobs:
            return plain
        return replace(plain, prompt_logprobs=self._plain[case][0].prompt_logprobs)

    def _run_all(self, engine: Engine, point: Point, rng: Random) -> dict[int, list[Request]]:
        order = self._order(point)
        if point.shuffled:
            rng.shuffle(order)
        num_late = rng.randrange(len(order)) if point.shuffled else 0
        early, late = order[: len(order) - num_late], order[len(order) - num_late :]
        requests: dict[int, list[Request]] = {}
        cases: dict[Request, Case] = {}

        def add(case: int) -> None:
            requests[case] = engine.add(
                self._cases[case].prompt_token_ids,
                with_samples(self._cases[case], point.n),
                images=self._cases[case].images,
                priority=rng.randrange(3) if point.priorities else 0,
            )
            cases.update(dict.fromkeys(requests[case], self._cases[case]))

        for case in early:
            add(case)
        step, abort_step = 0, rng.randint(1, 8)
        while engine.has_unfinished or late:
            if late and (step % 3 == 2 or not engine.has_unfinished):
                add(late.pop())
            _advance(engine, cases)
            step += 1
            running = [request for request in cases if request.status == "running"]
            spared = [request for request in running if request.num_preemptions < MAX_PREEMPTIONS]
            if point.preemption and step % FORCED_PREEMPTION_STEPS == 2 and spared:
                engine.scheduler.preempt(rng.choice(spared))
            if point.aborts and step == abort_step and len(cases) > 1:
                engine.abort(rng.choice([*cases]))
        return requests

    def _engine(self, point: Point) -> Engine:
        drafter = self._drafter(point)
        kinds = [*self._loaded.model.layer_kv(), *(drafter.layer_kv() if drafter else ())]
        layout = make_layout(kinds, block_size=point.block_size)
        longest = sum(-(-self.longest // group.block_size) + 1 for group in layout.groups)
        # Tight: two of the longest requests, so that a batch of them has to give way.
        num_blocks = 1 + longest * (2 if point.preemption else len(self._cases) * NUM_SAMPLES)
        changes = nest_fields(
            {
                "block_size": point.block_size,
                "num_blocks": num_blocks,
                "prefix_caching": point.prefix_cache,
                "max_num_seqs": point.batch_size,
                "max_num_batched_tokens": point.chunk_tokens,
                "policy": "priority" if point.priorities else "fcfs",
                "overlap": point.overlap,
                "draft_guard": point.guard,
                **({"num_drafts": point.num_drafts} if point.proposer is not None else {}),
            }
        )
        tree = self._config.model_dump(exclude_unset=True)
        for section, fields in changes.items():
            tree.setdefault(section, {}).update(fields)
        loaded = replace(self._loaded, proposer=self._proposer(point), drafter=self._drafter(point))
        costs = MadeUpCosts(point.index)
        return Engine.from_loaded(EngineConfig.from_tree(tree), loaded, costs=costs)

    def _proposer(self, point: Point) -> Proposer | None:
        if point.proposer == REHEARSED:
            scripts = [
                (case.prompt_token_ids, sample.token_ids)
                for case, samples in zip(self._cases, self._plain, strict=True)
                for sample in samples
            ]
            return Rehearsed(scripts, seed=point.index)
        make = HOST_PROPOSERS.get(point.proposer or "")
        return None if make is None else make()

    def _drafter(self, point: Point) -> Drafter | None:
        if point.proposer == TWIN:
            return Twin(self._loaded.model, seed=point.index)
        return self._loaded.drafter if point.proposer == OWN else None

    def _compare(
        self, result: PointResult, place: tuple[int, int], plain: Sample, got: Sample
    ) -> None:
        case, sample = place
        reason, stopped_by = got.reason
        if not self._cases[case].has_form(got.token_ids, None if stopped_by else reason):
            result.problems.append(f"prompt {case} sample {sample}: not of the form it was to have")
        difference = first_difference(plain, got, is_strict=self._bound is None)
        if difference is None:
            result.num_equal += 1
            return
        what, position = difference
        gap = _top_gap(plain.logprobs, position) if what == "token" else None
        is_close = self._bound is not None and gap is not None and gap <= self._bound
        if is_close:
            result.num_close += 1
        else:
            result.num_different += 1
        result.differences.append(Difference(case, sample, what, position, gap))


def _advance(engine: Engine, cases: Mapping[Request, Case]) -> None:
    """One turn of the loop, and what the edge does behind it: look for stop strings."""
    for request in engine.advance().updated:
        if cases[request].stops_at_pair:
            end = stop_end(request.output_token_ids)
            if end is not None:
                engine.finish(request, num_output_tokens=end, stop_reason="a pair")


def first_difference(plain: Sample, got: Sample, *, is_strict: bool) -> tuple[str, int] | None:
    """What differs first and where; None when all is equal.

    Args:
        is_strict: compare the bits of log-probabilities too.
    """
    for position, (wanted, found) in enumerate(zip(plain.token_ids, got.token_ids, strict=False)):
        if wanted != found:
            return "token", position
        if is_strict and plain.logprobs[position] != got.logprobs[position]:
            return "logprob", position
    if len(plain.token_ids) != len(got.token_ids):
        return "length", min(len(plain.token_ids), len(got.token_ids))
    if plain.reason != got.reason:
        return "finish reason", len(plain.token_ids)
    if is_strict and plain.prompt_logprobs != got.prompt_logprobs:
        return "prompt logprob", _first_unequal(plain.prompt_logprobs, got.prompt_logprobs)
    return None


def _first_unequal(wanted: Sequence[object], found: Sequence[object]) -> int:
    pairs = enumerate(zip(wanted, found, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(wanted), len(found)))


def _top_gap(logprobs: Sequence[TokenLogprobs], position: int) -> float | None:
    top = logprobs[position].top_logprobs if position < len(logprobs) else ()
    return top[0] - top[1] if len(top) > 1 else None
