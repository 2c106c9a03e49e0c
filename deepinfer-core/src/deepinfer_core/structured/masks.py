"""`GrammarMasks`: the bits of what the constrained requests of a step may draw.

Filled on the host while the device computes the step's logits: their tokens up to the step before
are here by then. A step without constrained requests costs a look at an empty table.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from deepinfer_core.request import Request
    from deepinfer_core.runtime.logits_rows import LogitsRows
    from deepinfer_core.scheduling.plan import StepPlan


class GrammarMasks:
    """Knows the requests that are constrained, from `watch` to `forget`.

    Args:
        vocab_size: of the logits.
        device: where masks go.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._num_words = -(-vocab_size // 32)
        self._device = device
        self._requests: dict[int, Request] = {}
        self.num_rows = 0
        """Rows that were filled, one for each token that might be drawn."""
        self.fill_s = 0.0

    def watch(self, request: Request) -> None:
        """Take note of a request, if it is constrained and did not end while it was held."""
        if request.constraint is not None and not request.is_finished:
            self._requests[request.request_id] = request

    def forget(self, requests: Iterable[Request]) -> None:
        """These have ended."""
        if self._requests:
            for request in requests:
                self._requests.pop(request.request_id, None)

    def of_step(self, plan: StepPlan, wanted: LogitsRows) -> Tensor | None:
        """[L, ceil(V / 32)] int32 for the logits rows of a step; None: all may draw what they like.

        Call it when all earlier steps are committed.
        """
        if not self._requests:
            return None
        live = [
            (index, request)
            for index, request_id in enumerate(plan.sample_request_ids)
            if (request := self._requests.get(request_id)) is not None
            and request.constraint is not None
            and request.constraint.is_active
            and not request.is_finished
        ]
        if not live:
            return None
        begun_s = time.perf_counter()
        host, mask = self._new_mask(len(wanted.rows))
        for index, request in live:
            start, end = wanted.starts[index], wanted.starts[index + 1]
            constraint = request.constraint
            assert constraint is not None
            position = request.num_prompt_tokens + constraint.num_advanced
            # A mask of another position would let the wrong tokens through.
            assert position == wanted.positions[start], "a mask must be of the token it is for"
            drafts = wanted.drafts[end - 1] if wanted.drafts else ()
            constraint.fill(list(host[start:end]), drafts)
            self.num_rows += end - start
        self.fill_s += time.perf_counter() - begun_s
        return mask.to(self._device, non_blocking=True)

    def _new_mask(self, num_rows: int) -> tuple[NDArray[np.int32], Tensor]:
        # Fresh each time, as in `staging`: the copy of the last one may be under way.
        pins = self._device.type != "cpu" and torch.accelerator.is_available()
        mask = torch.full((num_rows, self._num_words), -1, dtype=torch.int32, pin_memory=pins)
        return mask.numpy(), mask
