"""`ModelRunner`: a plan goes down, a handle comes back, one wait gives the tokens.

Owns the device side of a step: block tables, token pool, model, sampler. Never sees a request.
INVARIANT: `InFlight.result` is the only place that waits for the device, and what passes between
`submit`, `sample` and `result` lives in the handle, so two steps can be in flight.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer_core.kv.block_pool import NULL_BLOCK
from deepinfer_core.models.interface import Model, tower_of
from deepinfer_core.ops.bound import BoundOp
from deepinfer_core.plugin_api.device import DeviceEvent, DeviceRuntime
from deepinfer_core.runtime.batch_builder import BatchBuilder, Step
from deepinfer_core.runtime.kv_cache import layer_caches
from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.sampling.logprobs import PromptLogprobs
from deepinfer_core.sampling.result import SampledTokens, host_copy, to_host
from deepinfer_core.sampling.sampler import Sampler
from deepinfer_core.scheduling.plan import StepOutput, StepPlan
from deepinfer_core.staging import stage, to_device

if TYPE_CHECKING:
    from deepinfer_core.kv.layout import KVLayout
    from deepinfer_core.runtime.drafting import DeviceDrafting, LaunchedDrafts
    from deepinfer_core.runtime.graphs import DecodeGraphs


class ModelRunner:
    """Launches steps on one device.

    Args:
        pool: [num_blocks, page_bytes] uint8, the KV pool; `copy_blocks` is the bound op over it.
    """

    def __init__(
        self,
        model: Model,
        sampler: Sampler,
        token_pool: TokenPool,
        device: DeviceRuntime,
        *,
        pool: Tensor,
        layout: KVLayout,
        copy_blocks: BoundOp,
        max_num_seqs: int,
    ) -> None:
        self.model = model
        self.sampler = sampler
        self._token_pool = token_pool
        self._device = device
        self._pool = pool
        self._copy_blocks = copy_blocks
        self._torch_device = pool.device
        self.graphs: DecodeGraphs | None = None
        """Records and launches steps of one token each; None: every step runs op by op."""
        self.drafting: DeviceDrafting | None = None
        """Guesses behind what is drawn; None: nobody does on the device."""
        self._unapplied: deque[StepPlan] = deque()
        """Whose changes of rows and blocks are not made: the next one, and one that failed before
        they all were. Making a change twice does no harm."""
        self.builder = BatchBuilder(
            layout,
            layer_caches(pool, layout, model.dtype),
            token_pool,
            max_num_seqs=max_num_seqs,
            device=pool.device,
            tower=tower_of(model),
        )

    @staticmethod
    def is_out_of_memory(error: Exception) -> bool:
        """Whether what `submit` or `InFlight.sample` raised says that an allocation did not fit."""
        # torch has a type of its own for devices, but its CPU allocator raises a bare RuntimeError.
        return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
            isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
        )

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> InFlight:
        """Launch the forward of a plan up to its logits. Does not wait for the device.

        May raise whatever the allocator raises; the plan's changes of rows and blocks are then
        made with the next plan, if they were not before.
        """
        # A current device belongs to a thread, and any thread may drive.
        self._device.activate()
        self._unapplied.append(plan)
        while self._unapplied:
            self._apply_row_changes(self._unapplied[0])
            self._unapplied.popleft()
        step = self.builder.build(plan)
        logits: Tensor | None = None
        prompt_logprobs: list[PromptLogprobs] = []
        is_plain = draws_from_each(plan) and not plan.prompt_logprobs
        is_plain &= not plan.following_token_ids  # a recorded step gives no features
        if self.graphs is not None and is_plain and self.graphs.fits(step.batch):
            logits = self.graphs.logits(step.batch)
        follower: tuple[DeviceDrafting, Tensor] | None = None
        if logits is None:
            drafting = self.drafting if plan.following_token_ids else None
            if drafting is not None and not drafting.has_failed:
                hidden_states, features = drafting.forward(step.batch)
                follower = (drafting, features)
            else:
                hidden_states = self.model.forward(step.batch)
            logits = self._sampled_logits(plan, step, hidden_states)
            prompt_logprobs = self._prompt_logprobs(plan, hidden_states)
        if plan.num_drafts:
            # Behind a draft, stages read it as if it had been drawn.
            drafts = step.batch.input_ids.index_select(0, step.drafted)
            self._token_pool.write(step.draft_places, drafts)
        return InFlight(
            plan,
            logits,
            prompt_logprobs,
            step=step,
            sampler=self.sampler,
            token_pool=self._token_pool,
            event=self._device.create_event(),
            follower=follower,
        )

    def add_drafting(self, drafting: DeviceDrafting, num_drafts: int) -> None:
        """Let a drafter follow the steps whose plans want it, and guess so many tokens at most."""
        self.drafting = drafting
        self.builder.num_lookahead_tokens = num_drafts

    def clear_null_block(self) -> None:
        """Undo what steps of no request have written."""
        self._pool[NULL_BLOCK].zero_()

    def _apply_row_changes(self, plan: StepPlan) -> None:
        for row in plan.row_frees:
            self.sampler.free_row(row)
            self.builder.images.free_row(row)
        for start in plan.row_starts:
            self.sampler.start_row(start)
            self.builder.images.start_row(start.row, start.images)
            longest_word = max(map(len, start.bad_token_ids), default=0)
            known_ids = [*start.prompt_token_ids, *start.output_token_ids]
            self._token_pool.start_row(start.row, known_ids, history_len=longest_word)
        self.builder.update_blocks(plan.block_updates)
        if plan.block_copies:
            pairs = to_device(plan.block_copies, self._torch_device)
            self._copy_blocks(self._pool, pairs[:, 0], pairs[:, 1])

    def _sampled_logits(self, plan: StepPlan, step: Step, hidden_states: Tensor) -> Tensor | None:
        """[L, vocab_size] float32; forked samples repeat their source's row."""
        if not plan.sample_sources:
            return None
        if draws_from_each(plan):
            return self.model.compute_logits(hidden_states)  # one token each, and all draw
        logits = self.model.compute_logits(hidden_states[step.sources])
        sources = step.wanted.sources
        if len(step.sources) < len(sources):
            place = {source: i for i, source in enumerate(dict.fromkeys(sources))}
            repeat = [place[source] for source in sources]
            logits = logits[to_device(repeat, self._torch_device)]
        return logits

    def _prompt_logprobs(self, plan: StepPlan, hidden_states: Tensor) -> list[PromptLogprobs]:
        if not plan.prompt_logprobs:
            return []
        starts = [0, *accumulate(plan.num_scheduled_tokens)]
        wanted = []
        for part in plan.prompt_logprobs:
            start = starts[part.index]
            targets = to_device(part.target_token_ids, self._torch_device)
            wanted.append(
                self.sampler.prompt_logprobs(
                    hidden_states[start : start + len(targets)],
                    self.model.lm_head_chunk,
                    targets,
                    part.num_logprobs,
                ).to_host()
            )
        return wanted


def draws_from_each(plan: StepPlan) -> bool:
    """Whether every request has one token in the step and draws once from it."""
    return plan.sample_sources == list(range(len(plan.token_ids)))


class InFlight:
    """One launched step. `sample` once, then `result` once.

    Args:
        follower: who drafts behind the step, and what it reads of the target.
    """

    def __init__(
        self,
        plan: StepPlan,
        logits: Tensor | None,
        prompt_logprobs: list[PromptLogprobs],
        *,
        step: Step,
        sampler: Sampler,
        token_pool: TokenPool,
        event: DeviceEvent,
        follower: tuple[DeviceDrafting, Tensor] | None = None,
    ) -> None:
        self.plan = plan
        self.wanted = step.wanted
        """Whose logits are drawn from: a mask has a row for each of them."""
        self._follower = follower
        self._step = step
        self._logits = logits
        self._prompt_logprobs = prompt_logprobs
        self._sampler = sampler
        self._token_pool = token_pool
        self._event = event
        self._sampled: SampledTokens | None = None
        self._num_accepted: Tensor | None = None
        self._drafts: LaunchedDrafts | None = None

    @torch.inference_mode()
    def sample(self, mask: Tensor | None = None) -> None:
        """Launch stages, draw, verify drafts, and scatter into the token pool. Does not wait.

        Args:
            mask: [L, ceil(vocab_size / 32)] int32 bits of allowed tokens, see `wanted`.
        """
        if self._logits is not None:
            wanted, sampler, token_pool = self.wanted, self._sampler, self._token_pool
            sampled = sampler.sample(
                self._logits, wanted.rows, wanted.positions, token_pool, mask, wanted.drafts
            )
            self._logits = None  # the largest tensor of a step, and void after sampling
            # What is drawn behind a rejected draft is void, and is overwritten before it is read.
            token_pool.write(self._step.sample_places, sampled.token_ids)
            num_accepted, is_kept = None, None
            if wanted.drafts:
                num_accepted, is_kept = self._verify(sampled.token_ids)
            self._sampled = sampled.to_host()
            self._follow(sampled.token_ids, num_accepted)
            sampler.count(wanted.rows, sampled.token_ids, is_kept)
        else:
            self._follow(None, None)
        self._event.record()

    def _follow(self, token_ids: Tensor | None, num_accepted: Tensor | None) -> None:
        if self._follower is not None:
            drafting, features = self._follower
            self._follower = None  # as large as hidden states of all layers
            try:
                self._drafts = drafting.follow(
                    self.plan, self._step, features, token_ids, num_accepted, self._token_pool
                )
            except Exception as error:  # a plugin border
                if ModelRunner.is_out_of_memory(error):
                    raise
                drafting.give_up(error)

    def _verify(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """[S] int32 drafts accepted, and [L] bool: drawn behind accepted drafts only."""
        table = self.wanted.verify_table()
        (places, owners, depths), (draft_ids,) = stage(
            [table.places, table.owners, table.depths], [table.draft_ids], token_ids.device
        )
        num_accepted: Tensor = self._sampler.verify_op(draft_ids, token_ids[places])
        self._num_accepted = host_copy(num_accepted)
        return num_accepted, depths <= num_accepted[owners]

    def result(self) -> StepOutput:
        """Wait for the step and read its tokens. Blocks until the device has finished it."""
        self._event.wait()  # SYNC: the one wait of a step; the next forward is launched already
        prompt_logprobs = [
            tensors.to_list(part.target_token_ids, [part.num_logprobs] * len(part.target_token_ids))
            for part, tensors in zip(self.plan.prompt_logprobs, self._prompt_logprobs, strict=True)
        ]
        if self._sampled is None:
            return StepOutput([], prompt_logprobs=prompt_logprobs)
        num_accepted = [] if self._num_accepted is None else self._num_accepted.tolist()
        output = self.wanted.outputs(to_host(self._sampled), num_accepted)
        output.prompt_logprobs = prompt_logprobs
        if self._drafts is not None:
            output.drafts = self._drafts.read()
        return output
