"""What the faces need of an engine. They know integers go in and integers come out, no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from deepinfer_core.images import PreparedImage
from deepinfer_core.request import FinishReason, Request
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.scheduling.scheduler import StepResult
from deepinfer_core.structured.constraint import ThinkingStart


class EngineProtocol(Protocol):
    """The verbs of `Engine`. Not thread-safe: `EngineLoop` is the only caller."""

    def add(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        images: Sequence[PreparedImage] = (),
        priority: int = 0,
        thinking: ThinkingStart | None = None,
    ) -> list[Request]: ...

    def abort(self, request: Request, *, finish_reason: FinishReason = "abort") -> None: ...

    def finish(self, request: Request, *, num_output_tokens: int, stop_reason: str) -> None: ...

    def advance(self) -> StepResult: ...

    @property
    def has_unfinished(self) -> bool: ...

    def metrics(self) -> dict[str, Any]: ...

    def close(self) -> None: ...
