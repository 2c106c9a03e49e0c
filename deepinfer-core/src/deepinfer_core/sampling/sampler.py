"""`Sampler`: logits of a step in, one token per logits row out.

Owns the order of stages and which rows go through which of them. Does not know requests, models
or the scheduler. INVARIANT: nothing here reads a device value on the host, and a row's token and
log-probabilities have the same bits whatever other rows are in the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.ops.table import OpTable
from deepinfer_core.runtime.token_pool import TokenPool
from deepinfer_core.sampling.custom import CustomStages, LogitsStage
from deepinfer_core.sampling.logprobs import PromptLogprobs, prompt_logprobs
from deepinfer_core.sampling.penalties import Penalties
from deepinfer_core.sampling.result import LogprobGroup, LogprobTensors, SampledTokens
from deepinfer_core.sampling.row_state import DrawKind, RowState
from deepinfer_core.sampling.stages import (
    AllowedTokens,
    BadWords,
    GrammarMask,
    LogitBias,
    MinTokens,
    Stage,
)
from deepinfer_core.sampling.step import SampleStep
from deepinfer_core.scheduling.plan import RowStart
from deepinfer_core.staging import to_device

DRAFT_STAGES = (AllowedTokens, LogitBias, Penalties)
"""What drafts go through besides the draw: whatever depends on their row alone."""


class Sampler:
    """Draws tokens for rows that it was told about.

    Args:
        ops: gives `sample.mask`, `.penalties`, `.stages`, `.draw` and `.logprobs`, and
            `spec.verify`.
        max_num_seqs: number of rows.
        vocab_size: of the logits.
        device: where logits and state live.
        custom_stages: name -> stage, of plugins.
    """

    def __init__(
        self,
        ops: OpTable,
        *,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device | str = "cpu",
        custom_stages: Mapping[str, LogitsStage] | None = None,
    ) -> None:
        device = torch.device(device)

        def bind(name: str) -> Callable[..., Any]:
            return ops.bind(name, dtype="float32", role="sampler", vocab_size=vocab_size)

        self._vocab_size = vocab_size
        self._device = device
        self._stages_op = bind("sample.stages")
        self._draw_op = bind("sample.draw")
        self._logprobs_op = bind("sample.logprobs")
        self.verify_op = ops.bind("spec.verify", dtype="int32", role="sampler")
        self._rows = RowState(max_num_seqs, device)
        mask_op = bind("sample.mask")
        self._penalties = Penalties(bind("sample.penalties"), vocab_size=vocab_size, device=device)
        # The order is part of what a request means; see the module `stages`.
        self._stages: tuple[Stage, ...] = (
            GrammarMask(mask_op),
            AllowedTokens(mask_op, vocab_size=vocab_size, device=device),
            BadWords(),
            MinTokens(vocab_size=vocab_size),
            LogitBias(vocab_size=vocab_size),
            self._penalties,
            CustomStages(custom_stages or {}),
        )

    def start_row(self, start: RowStart) -> None:
        """Take a row. Token ids and stage names are known to exist. Does not wait."""
        self.free_row(start.row)
        self._rows.start_row(start)
        for stage in self._stages:
            stage.start_row(start)

    def free_row(self, row: int) -> None:
        """Give a row's state back; nothing if it has none."""
        for stage in self._stages:
            stage.free_row(row)

    def sample(
        self,
        logits: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        token_pool: TokenPool,
        mask: Tensor | None = None,
        drafts: Sequence[Sequence[int]] = (),
    ) -> SampledTokens:
        """Draw one token per logits row, which changes nothing yet. Never waits for the device.

        Args:
            logits: [L, V] float32, contiguous; consumed: its content afterwards is void.
            rows: [L] row of each logits row.
            positions: [L] absolute position of the token to draw.
            token_pool: the tokens before it; not written here.
            mask: [L, ceil(V / 32)] int32 bits of allowed tokens, of grammars.
            drafts: [L] tokens before each that are not counted yet and stand in the pool; empty:
                there are none.
        """
        if mask is None and self._rows.all_plain(rows):
            return SampledTokens(self._draw_op(logits), _nothing_to_draw(logits))
        step = SampleStep(rows, positions, token_pool, self._device, mask, drafts)
        logits = logits.contiguous()
        wanted = self._rows.logprobs(rows, "raw")
        raw = logits.index_select(0, step.ints([*wanted])) if wanted else None
        for stage in self._stages:
            logits = stage.apply(logits, step)
        failed = _nothing_to_draw(logits)
        token_ids, groups = self._draw(logits, step)
        if raw is not None:
            groups.append(self._logprobs(raw, wanted, token_ids, step))
        return SampledTokens(token_ids, failed, groups, step.errors)

    def count(self, rows: Sequence[int], token_ids: Tensor, is_kept: Tensor | None = None) -> None:
        """Take note of what was drawn, once nothing can fail any more: a step may be drawn again.

        Args:
            rows: as `sample` got them; token_ids: [L] int32, as it gave them.
            is_kept: [L] bool, False where a token was drawn behind a rejected draft; None: all.
        """
        self._penalties.count(rows, token_ids, is_kept)

    def prompt_logprobs(
        self,
        hidden: Tensor,
        lm_head_chunk: Callable[[Tensor, int, int], Tensor],
        target_ids: Tensor,
        num_logprobs: int,
    ) -> PromptLogprobs:
        """`sampling.logprobs.prompt_logprobs` with this sampler's op and vocabulary."""
        return prompt_logprobs(
            hidden,
            lm_head_chunk,
            self._vocab_size,
            target_ids,
            num_logprobs,
            logprobs_op=self._logprobs_op,
        )

    def draft_draw(
        self, rows: Sequence[int], positions: Tensor, token_pool: TokenPool
    ) -> Callable[[Tensor, int], Tensor]:
        """What draws drafts as these rows draw: with their biases, temperature, truncation, noise.

        Penalties are those of what was counted so far. Stages that read positions or history are
        left out, so a draft is less often accepted where they matter.

        Args:
            positions: [N] int64 on the device, of the first draft of each row.
            token_pool: not read.

        Returns:
            (logits [N, V] float32, which draft from 0) -> token ids [N] int32.
        """
        kinds, are_plain = self._rows.by_kind(rows), self._rows.all_plain(rows)
        stages = [stage for stage in self._stages if isinstance(stage, DRAFT_STAGES)]

        def draw(logits: Tensor, index: int) -> Tensor:
            if are_plain:
                likeliest: Tensor = self._draw_op(logits)
                return likeliest
            step = SampleStep(rows, [0] * len(rows), token_pool, self._device)
            logits = logits.clone()
            for stage in stages:
                logits = stage.apply(logits, step)
            token_ids = torch.zeros(len(rows), dtype=torch.int32, device=self._device)
            for kind, indices in kinds.items():
                own, places = [rows[i] for i in indices], to_device(indices, self._device)
                drawn, _, _ = self._draw_kind(
                    kind, logits.index_select(0, places), own, positions[places] + index
                )
                token_ids.index_copy_(0, places, drawn)
            return token_ids

        return draw

    def _draw(self, logits: Tensor, step: SampleStep) -> tuple[Tensor, list[LogprobGroup]]:
        """[L] int32 tokens, and log-probabilities of processed logits where wanted."""
        processed = self._rows.logprobs(step.rows, "processed")
        token_ids = torch.zeros(len(step.rows), dtype=torch.int32, device=self._device)
        groups: list[LogprobGroup] = []
        for kind, indices in self._rows.by_kind(step.rows).items():
            selected = step.select(logits, indices)
            rows, positions = [step.rows[i] for i in indices], step.positions_of(indices)
            drawn, values, ids = self._draw_kind(kind, selected, rows, positions)
            token_ids = step.write_back(token_ids, indices, drawn)
            wanted = {i: processed[i] for i in indices if i in processed}
            if wanted:
                places = step.ints([j for j, i in enumerate(indices) if i in wanted])
                values = values.index_select(0, places)
                if ids is not None:
                    values = self._spread(values, ids.index_select(0, places))
                groups.append(self._logprobs(values, wanted, token_ids, step))
        return token_ids, groups

    def _draw_kind(
        self, kind: DrawKind, logits: Tensor, rows: Sequence[int], positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Tokens [n] int32, processed logits, and the ids of their columns (None: all)."""
        if kind == "greedy":
            return self._draw_op(logits), logits, None
        params = [self._rows.params(row) for row in rows]
        inputs = self._rows.draw_inputs(to_device(rows, self._device))
        values, ids = self._stages_op(
            logits,
            inputs.temperature,
            min_p=inputs.min_p if any(p.min_p > 0 for p in params) else None,
            top_k=inputs.top_k if any(p.top_k > 0 for p in params) else None,
            top_p=inputs.top_p if any(p.top_p < 1 for p in params) else None,
            max_top_k=max(p.top_k for p in params) if kind == "candidates" else None,
        )
        drawn = self._draw_op(values, ids, inputs.seeds, inputs.sample_indices, positions)
        return drawn, values, ids

    def _spread(self, values: Tensor, token_ids: Tensor) -> Tensor:
        """[n, V] logits of [n, K] candidates; everything else is -inf."""
        whole = values.new_full((values.shape[0], self._vocab_size), float("-inf"))
        return whole.scatter_(1, token_ids, values)

    def _logprobs(
        self, logits: Tensor, wanted: dict[int, int], token_ids: Tensor, step: SampleStep
    ) -> LogprobGroup:
        """logits: [n, V], of the n logits rows that are the keys of `wanted`."""
        indices = [*wanted]
        chosen = step.select(token_ids, indices)
        tensors = self._logprobs_op(logits, chosen, max(wanted.values()))
        return LogprobGroup(indices, [*wanted.values()], LogprobTensors(*tensors))


def _nothing_to_draw(logits: Tensor) -> Tensor:
    """[L] bool: a row holds NaN, or nothing above -inf."""
    return ~(logits.amax(dim=-1) > float("-inf"))
