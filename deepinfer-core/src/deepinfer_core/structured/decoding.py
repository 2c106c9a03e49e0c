"""`StructuredDecoding`: all that an engine needs to know of grammars and of thinking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deepinfer_core.errors import GrammarError, UnsupportedSamplingError
from deepinfer_core.structured.compiler import Compiled, GrammarCompiler
from deepinfer_core.structured.constraint import Constraint, Markers, ThinkingStart
from deepinfer_core.structured.masks import GrammarMasks

if TYPE_CHECKING:
    from deepinfer_core.plugin_api.grammar import CompiledGrammar
    from deepinfer_core.request import Request
    from deepinfer_core.runtime.logits_rows import LogitsRows
    from deepinfer_core.sampling_params import SamplingParams
    from deepinfer_core.scheduling.plan import StepPlan
    from deepinfer_core.text.tokenizer import Tokenizer

_WAIT_S = 0.005


@dataclass(frozen=True, slots=True)
class Held:
    """The samples of one prompt, which wait for their grammar."""

    requests: list[Request]
    thinking: ThinkingStart | None
    compiled: Compiled


class StructuredDecoding:
    """Constrains requests of one engine. Used from the thread that drives it.

    Args:
        compiler: may serve several engines.
        markers: of thinking; None: the vocabulary has none.
        eos_token_ids: of the model.
        device: where logits are.
    """

    def __init__(
        self,
        compiler: GrammarCompiler,
        tokenizer: Tokenizer,
        *,
        markers: Markers | None,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        device: torch.device,
    ) -> None:
        self._compiler = compiler
        self._tokenizer = tokenizer
        self._markers = markers
        self._silent_ids = {*tokenizer.added_tokens, *eos_token_ids}
        self._masks = GrammarMasks(vocab_size, device)
        self._held: list[Held] = []

    def check(self, params: SamplingParams) -> None:
        """Refuse what this vocabulary cannot do.

        Raises:
            UnsupportedSamplingError: thinking cannot be limited.
        """
        budget = params.thinking_budget
        if budget is not None and self._markers is None:
            raise UnsupportedSamplingError(
                f"thinking_budget = {budget}: this vocabulary has no token that ends thinking; "
                "leave it out, or name the tokens with structured.thinking_start and thinking_end",
                field="thinking_budget",
            )

    def admit(self, requests: list[Request], thinking: ThinkingStart | None) -> bool:
        """Give the samples of one prompt what their parameters ask for. Never waits.

        Args:
            thinking: how the prompt ends, see `EncodedPrompt`.

        Returns:
            Whether they must be held until `take_ready` gives them back.

        Raises:
            GrammarError: the form is malformed or cannot be enforced.
        """
        params = requests[0].params
        if params.structured is None:
            if params.thinking_budget is not None:
                self._constrain(requests, thinking, None)
            return False
        compiled = self._compiler.compile(params.structured)
        if not compiled.done():
            self._held.append(Held(requests, thinking, compiled))
            return True
        self._constrain(requests, thinking, compiled.result())
        return False

    @property
    def is_waiting(self) -> bool:
        """Requests are held."""
        return bool(self._held)

    def wait(self) -> None:
        """Wait for a compiler, a little while; for when nothing else can be done."""
        wait([held.compiled for held in self._held], _WAIT_S, FIRST_COMPLETED)

    def take_ready(self) -> list[tuple[list[Request], GrammarError | None]]:
        """Those that need to be held no longer, constrained; or why they must end."""
        if not self._held:
            return []
        done = [held for held in self._held if held.compiled.done()]
        self._held = [held for held in self._held if not held.compiled.done()]
        ready: list[tuple[list[Request], GrammarError | None]] = []
        for held in done:
            error: GrammarError | None = None
            try:
                self._constrain(held.requests, held.thinking, held.compiled.result())
            except GrammarError as refused:
                error = refused
            ready.append((held.requests, error))
        return ready

    def mask(self, plan: StepPlan, wanted: LogitsRows) -> Tensor | None:
        """As `GrammarMasks.of_step`."""
        return self._masks.of_step(plan, wanted)

    def forget(self, requests: Iterable[Request]) -> None:
        """These have ended."""
        self._masks.forget(requests)

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, times in seconds."""
        counts = self._compiler.counts
        return {
            "num_mask_rows": self._masks.num_rows,
            "mask_fill_s": self._masks.fill_s,
            "num_grammars_compiled": counts.num_compiled,
            "num_grammar_hits": counts.num_hits,
            "grammar_compile_s": counts.compile_s,
        }

    def _constrain(
        self,
        requests: Sequence[Request],
        thinking: ThinkingStart | None,
        grammar: CompiledGrammar | None,
    ) -> None:
        start = self._start(requests[0].prompt_token_ids, thinking)
        try:
            matchers = [None if grammar is None else grammar.matcher() for _ in requests]
        except Exception as error:  # a plugin's border; whatever it raises ends one prompt
            raise GrammarError(f"the grammar's backend failed: {error}") from error
        for request, matcher in zip(requests, matchers, strict=True):
            request.constraint = Constraint(
                matcher,
                end_ids=request.stop_token_ids & self._silent_ids,
                markers=self._markers,
                start=start,
                budget=request.params.thinking_budget,
            )
            self._masks.watch(request)

    def _start(self, prompt: Sequence[int], thinking: ThinkingStart | None) -> ThinkingStart:
        if self._markers is None:
            return "closed"
        if thinking in ("open", "closed"):
            return thinking
        # Only at the very end: what a person wrote before it says nothing of the answer.
        for token_id in reversed(prompt):
            if token_id == self._markers.start_id:
                return "open"
            if token_id == self._markers.end_id:
                return "closed"
            if not self._tokenizer.token_bytes(token_id).isspace():
                break
        return thinking or "closed"
