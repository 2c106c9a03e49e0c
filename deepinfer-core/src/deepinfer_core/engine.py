"""`Engine`: add, abort, step. One loop, three verbs: schedule, submit, commit.

Only integers live here; text belongs to the edge (`llm.py`). `step` is the plain loop;
`overlapped_step` launches the next forward before it reads the tokens of the last one.
INVARIANT: both loops give the same tokens.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deepinfer_core.config import EngineConfig
from deepinfer_core.engine_setup import (
    LoadedModel,
    load_logits_stages,
    load_model,
    resolve_max_model_len,
    sampling_defaults,
)
from deepinfer_core.errors import EngineError
from deepinfer_core.plugins import PluginHost
from deepinfer_core.request import FinishReason, Request
from deepinfer_core.request_checks import RequestLimits, check_priority, check_request
from deepinfer_core.runtime.assembly import DeviceSide, StepLimits, assemble
from deepinfer_core.runtime.runner import InFlight
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduling.scheduler import Scheduler, StepResult
from deepinfer_core.speculative.choose import make_draft_source, num_drafts
from deepinfer_core.structured.choose import make_structured_decoding

if TYPE_CHECKING:
    from deepinfer_core.images import PreparedImage
    from deepinfer_core.models.loader import Progress
    from deepinfer_core.scheduling.plan import StepPlan
    from deepinfer_core.speculative.choose import Measurable
    from deepinfer_core.structured.constraint import ThinkingStart
    from deepinfer_core.structured.decoding import StructuredDecoding
    from deepinfer_core.weights.model_info import ModelInfo

logger = logging.getLogger(__name__)


class Engine:
    """One model on one device. Not thread-safe: one thread owns it.

    Args:
        limits: what a request may ask of this model and pool.
        loaded: the model, its facts, its op table and its tokenizer.
        structured: holds answers to the forms that were asked for.
        defaults: the model's own sampling defaults, for fields that a request leaves open.
        overlap: which loop `advance` runs.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        device_side: DeviceSide,
        *,
        limits: RequestLimits,
        loaded: LoadedModel,
        structured: StructuredDecoding,
        defaults: dict[str, Any],
        overlap: bool,
    ) -> None:
        self.scheduler = scheduler
        self.limits = limits
        self.info = loaded.info
        self.op_choices = loaded.ops.choices()
        self.tokenizer = loaded.tokenizer
        self.runner = device_side.runner
        """For tools that measure; touch it only while nothing runs."""
        self._kv = device_side.kv
        self._structured = structured
        self._defaults = defaults
        self._overlap = overlap
        self._last: InFlight | None = None
        self._next_request_id = 0
        self._num_steps = 0

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        host: PluginHost | None = None,
        *,
        progress: Progress | None = None,
    ) -> Engine:
        """Load the model and build everything around it. Blocks until it can take requests.

        Args:
            host: plugins already loaded; default: those that the configuration allows.
            progress: called with (tensor name, bytes) for each tensor in place.

        Raises:
            ConfigError, ModelLoadError, PlatformError, PluginError: what has to be mended.
        """
        if host is None:
            host = PluginHost(allow=config.plugin.plugins, block=config.plugin.block)
        loaded = load_model(config, host, progress=progress)
        return cls.from_loaded(config, loaded, load_logits_stages(host))

    @classmethod
    def from_loaded(
        cls,
        config: EngineConfig,
        loaded: LoadedModel,
        stages: dict[str, Any] | None = None,
        *,
        costs: Measurable | None = None,
    ) -> Engine:
        """Build everything around a model that is in place; several engines may share one.

        Args:
            stages: custom logits stages by name.
            costs: of steps and drafts, for the guard of drafts; default: they are measured.
        """
        stages, info = stages or {}, loaded.info
        max_model_len = resolve_max_model_len(config.model, info)
        depth = num_drafts(config.speculative, loaded.drafter)
        device_side = assemble(
            loaded.model,
            loaded.ops,
            loaded.runtime,
            config.cache,
            limits=StepLimits(config.scheduler, max_model_len, depth),
            logits_stages=stages,
            drafter=loaded.drafter,
            cache_dir=config.device.cache_dir,
        )
        scheduler = Scheduler(
            device_side.kv,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            policy=config.scheduler.policy,
            history_len=device_side.history_len,
            drafts=make_draft_source(
                config.speculative,
                loaded.proposer,
                loaded.drafter,
                vocab_size=info.vocab_size,
                costs=costs or device_side,
            ),
        )
        return cls(
            scheduler,
            device_side,
            limits=_request_limits(config, info, device_side, max_model_len, stages),
            loaded=loaded,
            structured=make_structured_decoding(config.structured, loaded),
            defaults=sampling_defaults(config.model, info),
            overlap=config.scheduler.overlap,
        )

    def add(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        images: Sequence[PreparedImage] = (),
        priority: int = 0,
        thinking: ThinkingStart | None = None,
    ) -> list[Request]:
        """Check a prompt and queue its `n` samples; they share the prompt's blocks.

        Args:
            images: prepared for this model, one for each image token of the prompt.
            thinking: whether the prompt ends inside of thinking, as far as is known.

        Returns:
            One request per sample, in order of `sample_index`.

        Raises:
            RequestError: the prompt or a parameter cannot be served; nothing was queued.
        """
        params = params.with_defaults(self._defaults)
        checked = check_request(prompt_token_ids, params, self.limits, self._encode_word, images)
        priority = check_priority(priority)
        self._structured.check(params)
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        now = time.monotonic()
        requests = [
            Request(
                request_id=self._next_request_id + sample_index,
                prompt_token_ids=checked.prompt_token_ids,
                params=params,
                seed=seed,
                stop_token_ids=checked.stop_token_ids,
                max_total_tokens=checked.max_total_tokens,
                bad_token_ids=checked.bad_token_ids,
                images=checked.images,
                sample_index=sample_index,
                priority=priority,
                arrival_time_s=now,
            )
            for sample_index in range(params.n)
        ]
        is_held = self._structured.admit(requests, thinking)
        self._next_request_id += len(requests)
        leader, followers = requests[0], requests[1:]
        leader.followers.extend(followers)
        self.scheduler.add(leader, is_held=is_held)
        return requests

    def abort(self, request: Request, *, finish_reason: FinishReason = "abort") -> None:
        """End one sample now. Idempotent; blocks in use by a step in flight are freed later."""
        self.scheduler.abort(request, finish_reason=finish_reason)

    def finish(self, request: Request, *, num_output_tokens: int, stop_reason: str) -> None:
        """End a sample at a stop string: ids and logprobs are cut to `num_output_tokens`."""
        self.scheduler.finish(request, num_output_tokens=num_output_tokens, stop_reason=stop_reason)

    @property
    def has_unfinished(self) -> bool:
        return self._last is not None or self.scheduler.has_unfinished

    def advance(self) -> StepResult:
        """One turn of the loop that the configuration chose. Blocks for one step."""
        return self.overlapped_step() if self._overlap else self.step()

    def step(self) -> StepResult:
        """The plain loop: launch a step and read its tokens."""
        if self._last is not None:
            return self._settle()
        plan = self._schedule()
        if plan is None:
            return self._idle()
        flight = self._submit(plan)
        if flight is None or not self._sample(flight):
            return StepResult()
        return self._commit(flight)

    def overlapped_step(self) -> StepResult:
        """Launch step N+1, then read the tokens of step N."""
        plan = self._schedule()
        flight = self._submit(plan) if plan is not None else None
        if self._last is None and plan is None:
            return self._idle()
        result = self._settle() if self._last is not None else StepResult()
        if flight is not None and self._sample(flight):
            self._last = flight
        return result

    def reset_prefix_cache(self) -> None:
        """Make nothing hittable; requests under way lose no token."""
        self.scheduler.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Check blocks, rows and counters; for when the engine is idle and for tests.

        Raises:
            IntegrityError: with the arithmetic.
        """
        self.scheduler.check_integrity()

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, and how many run and wait now."""
        kv = self._kv.stats()
        return {
            "num_steps": self._num_steps,
            "num_running": self.scheduler.num_running,
            "num_waiting": self.scheduler.num_waiting,
            "num_preemptions": self.scheduler.num_preemptions,
            "num_blocks": kv.num_blocks,
            "num_free_blocks": kv.num_free_blocks,
            "num_cached_blocks": kv.num_cached_blocks,
            "num_queried_tokens": kv.num_queried_tokens,
            "num_hit_tokens": kv.num_hit_tokens,
            **self.scheduler.draft_metrics(),
            **self._structured.metrics(),
        }

    def close(self) -> None:
        """Wait for the step in flight; nothing may be added afterwards. Idempotent."""
        if self._last is not None:
            self._settle()

    def _encode_word(self, word: str) -> list[int]:
        return self.tokenizer.encode(word, add_special_tokens=False)

    def _schedule(self) -> StepPlan | None:
        for requests, error in self._structured.take_ready():
            for request in requests:
                if error is None:
                    self.scheduler.release(request)
                else:
                    self.scheduler.abort(request, finish_reason="error", error=error)
        return self.scheduler.schedule()

    def _submit(self, plan: StepPlan) -> InFlight | None:
        """Launch a step; None if memory ran out, and the step is taken back."""
        self._num_steps += 1
        try:
            return self.runner.submit(plan)
        except (MemoryError, RuntimeError) as error:
            self._roll_back(plan, error)
            return None

    def _sample(self, flight: InFlight) -> bool:
        """Draw a step's tokens; False if memory ran out, and the step is taken back."""
        try:
            flight.sample(self._structured.mask(flight.plan, flight.wanted))
        except (MemoryError, RuntimeError) as error:
            self._roll_back(flight.plan, error)
            return False
        return True

    def _roll_back(self, plan: StepPlan, error: Exception) -> None:
        if not self.runner.is_out_of_memory(error):
            raise error
        num_tokens, reason = len(plan.token_ids), str(error) or type(error).__name__
        logger.warning(
            "memory ran out in a step of %d tokens of %d requests; smaller steps follow; to avoid "
            "this, lower scheduler.max_num_batched_tokens or scheduler.max_num_seqs, or give the "
            "KV cache less: %s",
            num_tokens,
            len(plan.rows),
            reason,
        )
        self.scheduler.roll_back(plan, reason)

    def _settle(self) -> StepResult:
        assert self._last is not None
        flight, self._last = self._last, None
        return self._commit(flight)

    def _commit(self, flight: InFlight) -> StepResult:
        result = self.scheduler.commit(flight.plan, flight.result())
        self._structured.forget(result.finished)
        return result

    def _idle(self) -> StepResult:
        """Nothing to launch and nothing in flight: what ended meanwhile, or a bug."""
        result = StepResult(finished=self.scheduler.take_finished())
        self._structured.forget(result.finished)
        if self._structured.is_waiting:
            self._structured.wait()
        elif not result.finished and self.scheduler.has_unfinished:
            raise EngineError(
                f"{self.scheduler.num_waiting} requests wait, none runs, and nothing can start"
            )
        return result


def _request_limits(
    config: EngineConfig,
    info: ModelInfo,
    device_side: DeviceSide,
    max_model_len: int,
    stages: dict[str, Any],
) -> RequestLimits:
    return RequestLimits(
        vocab_size=info.vocab_size,
        max_model_len=max_model_len,
        max_position=info.max_position,
        max_pool_tokens=device_side.kv.max_tokens_of_pool,
        eos_token_ids=info.eos_token_ids,
        logits_stages=frozenset(stages),
        bounded_replay=config.cache.bounded_replay,
        vision=device_side.runner.builder.images.config,
    )
