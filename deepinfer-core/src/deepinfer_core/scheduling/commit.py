"""What a settled step's output does to requests: ids and log-probabilities, up to the first end.

Functions over a step and the roster; the order of calls is the scheduler's.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from deepinfer_core.errors import GrammarError, RequestError
from deepinfer_core.kv.manager import KVManager
from deepinfer_core.request import Request
from deepinfer_core.scheduling.entry import Entry, Place
from deepinfer_core.scheduling.plan import StepOutput, TokenLogprobs
from deepinfer_core.scheduling.roster import Roster
from deepinfer_core.scheduling.step import Step


def commit_tokens(step: Step, output: StepOutput, roster: Roster, kv: KVManager) -> list[Request]:
    """Append what each sampled row drew and end those that are done.

    A row whose request ended while the step was in flight is void: its output is dropped.

    Returns:
        The requests that got tokens.
    """
    updated: list[Request] = []
    now = monotonic()
    is_plain = output.logprobs is None and not output.errors
    num_drafts_of = step.plan.num_drafts
    for index, (entry, token_ids) in enumerate(zip(step.sampled, output.token_ids, strict=True)):
        request = entry.request
        if request.finish_reason is not None:
            continue
        num_drafts = num_drafts_of.get(index, 0)
        request.num_in_flight_tokens -= 1 + num_drafts
        outputs = request.output_token_ids
        if not outputs:
            request.first_token_time_s = now
        constraint = request.constraint
        is_single = is_plain and not num_drafts and constraint is None
        if is_single and len(outputs) + 1 < entry.max_output_tokens:
            token_id = token_ids[0]
            if token_id not in entry.stop_token_ids:
                outputs.append(token_id)  # it takes the place of the one counted in flight
                updated.append(request)
                continue
        entry.num_tokens -= 1 + num_drafts
        error = RequestError(output.errors[index]) if index in output.errors else None
        if constraint is not None and constraint.error is not None:
            token_ids, error = (), constraint.error  # nothing said what it may draw
        if num_drafts:
            _settle_drafts(entry, num_drafts, max(0, len(token_ids) - 1))
        logprobs = output.logprobs[index] if output.logprobs is not None else None
        _append(entry, token_ids, logprobs, roster, kv)
        if error is not None and request.finish_reason is None:
            roster.end(entry, "error", error=error)
        if token_ids:
            updated.append(request)
    return updated


def _settle_drafts(entry: Entry, num_drafts: int, num_accepted: int) -> None:
    """What was computed of rejected drafts is void; the next step writes over it."""
    request = entry.request
    if entry.place is Place.RUNNING:
        request.num_computed_tokens -= num_drafts - num_accepted


def _append(
    entry: Entry,
    token_ids: Sequence[int],
    logprobs: list[TokenLogprobs] | None,
    roster: Roster,
    kv: KVManager,
) -> None:
    request = entry.request
    outputs = request.output_token_ids
    num_settled = request.num_prompt_tokens + len(outputs)
    for count, token_id in enumerate(token_ids, start=1):
        is_stop = token_id in entry.stop_token_ids
        is_complete = False
        if request.constraint is not None and not is_stop:
            try:
                is_complete = request.constraint.advance(token_id)
            except GrammarError as error:
                request.logprobs += (logprobs or [])[: count - 1]
                roster.end(entry, "error", error=error)
                return
        outputs.append(token_id)
        if is_stop or is_complete or len(outputs) >= entry.max_output_tokens:
            if logprobs is not None:
                request.logprobs += logprobs[:count]
            kv.register(request, num_settled + count - 1)  # accepted drafts are computed
            is_named = is_stop and token_id in request.params.stop_token_ids
            roster.end(
                entry,
                "stop" if is_stop or is_complete else "length",
                stop_reason=token_id if is_named else None,
            )
            return
    if logprobs is not None:
        request.logprobs += logprobs[: len(token_ids)]
    entry.num_tokens += len(token_ids)


def commit_prompt_logprobs(step: Step, output: StepOutput) -> None:
    """Append in order; what an earlier stay of a preempted request delivered is skipped."""
    for (request, start), entries in zip(
        step.prompt_logprobs_targets(), output.prompt_logprobs, strict=True
    ):
        if not request.is_finished:
            request.prompt_logprobs += entries[len(request.prompt_logprobs) - start :]


def cut_outputs(request: Request, num_output_tokens: int) -> None:
    """Keep that many output ids and their log-probabilities."""
    del request.output_token_ids[num_output_tokens:]
    del request.logprobs[num_output_tokens:]
