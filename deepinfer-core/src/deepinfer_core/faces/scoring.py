"""`score`: how likely a model finds a given continuation.

The border between context and continuation is drawn as lm-evaluation-harness draws it, so that
numbers compare: trailing spaces of the context belong to the continuation, and the continuation's
tokens are what the whole has beyond the context's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from deepinfer_core.errors import ConfigError, RequestError
from deepinfer_core.faces.collect import Job, run_jobs
from deepinfer_core.faces.frontend import Frontend
from deepinfer_core.faces.prompts import EncodedPrompt
from deepinfer_core.outputs import RequestOutput
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.text.tokenizer import Tokenizer

SCORE_PARAMS = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)
Text = str | Sequence[int]


@dataclass(slots=True)
class ScoreOutput:
    """Log-likelihood of one continuation, in nats. Either `error` is set or the numbers are."""

    total_logprob: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    """Of the continuation."""
    logprobs: list[float] = field(default_factory=list)
    """One for each of `token_ids`."""
    is_greedy: bool = False
    """Whether greedy decoding would produce exactly this continuation."""
    num_context_tokens: int = 0
    error: RequestError | None = None


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """Context and continuation as one prompt."""

    encoded: EncodedPrompt
    num_context_tokens: int


def score_pairs(
    frontend: Frontend,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[Text, Text]],
    *,
    raise_errors: bool = False,
    progress: bool | None = None,
) -> list[ScoreOutput]:
    """Score (context, continuation) pairs; results in order. Blocks until all are done.

    Raises:
        RequestError: with `raise_errors`, the first.
        EngineError: the engine stopped.
    """
    encoded: list[ScoredPair | RequestError] = []
    for context, continuation in pairs:
        try:
            encoded.append(encode_pair(tokenizer, context, continuation))
        except RequestError as error:
            encoded.append(error)
    jobs = [Job(e.encoded if isinstance(e, ScoredPair) else e, SCORE_PARAMS) for e in encoded]
    outputs = run_jobs(frontend, jobs, raise_errors=raise_errors, progress=progress)
    return [
        read_score(pair, output) if isinstance(pair, ScoredPair) else ScoreOutput(error=pair)
        for pair, output in zip(encoded, outputs, strict=True)
    ]


def pair_up(
    contexts: Text | Sequence[Text], continuations: Text | Sequence[Text]
) -> list[tuple[Text, Text]]:
    """One pair from two texts, or as many as there are from two lists.

    Raises:
        ConfigError: the lists differ in length.
    """
    left, right = _as_list(contexts), _as_list(continuations)
    if len(left) != len(right):
        raise ConfigError(f"{len(left)} contexts but {len(right)} continuations: give one for each")
    return list(zip(left, right, strict=True))


def encode_pair(tokenizer: Tokenizer, context: Text, continuation: Text) -> ScoredPair:
    """Join a context and a continuation, both text or both token ids.

    An empty context is the begin-of-sequence token, or end-of-sequence where there is none.

    Raises:
        RequestError: the kinds differ, or nothing is left to score.
    """
    if isinstance(context, str) and isinstance(continuation, str):
        context_ids, whole = _encode_texts(tokenizer, context, continuation)
    elif isinstance(context, str) or isinstance(continuation, str):
        raise RequestError("context and continuation must both be text or both be token ids")
    else:
        context_ids = list(context) or _start_of_text(tokenizer)
        whole = [*context_ids, *continuation]
    if len(whole) <= len(context_ids):
        raise RequestError("the continuation is empty", field="continuation")
    return ScoredPair(EncodedPrompt(whole), len(context_ids))


def read_score(pair: ScoredPair, output: RequestOutput) -> ScoreOutput:
    """Pick the continuation's numbers out of a prompt's log-probabilities."""
    if output.error is not None:
        return ScoreOutput(error=output.error)
    entries = (output.prompt_logprobs or [])[pair.num_context_tokens - 1 :]
    if not entries:  # ended by Ctrl-C before the prompt was computed
        return ScoreOutput(error=RequestError("the request was aborted"))
    logprobs = [entry.logprob for entry in entries]
    return ScoreOutput(
        total_logprob=sum(logprobs),
        token_ids=[entry.token_id for entry in entries],
        logprobs=logprobs,
        is_greedy=all(entry.rank == 1 for entry in entries),
        num_context_tokens=pair.num_context_tokens,
    )


def _as_list(texts: Text | Sequence[Text]) -> list[Text]:
    if isinstance(texts, str) or (texts and all(isinstance(item, int) for item in texts)):
        return [cast(Text, texts)]
    return list(cast(Sequence[Text], texts))


def _encode_texts(
    tokenizer: Tokenizer, context: str, continuation: str
) -> tuple[list[int], list[int]]:
    kept = context.rstrip()
    continuation = context[len(kept) :] + continuation
    if not kept:
        start = _start_of_text(tokenizer)
        return start, [*start, *tokenizer.encode(continuation, add_special_tokens=False)]
    return tokenizer.encode(kept), tokenizer.encode(kept + continuation)


def _start_of_text(tokenizer: Tokenizer) -> list[int]:
    token_id = tokenizer.bos_token_id
    if token_id is None:
        token_id = tokenizer.eos_token_id
    if token_id is None:
        raise RequestError("the context is empty and this model has no token to begin a text with")
    return [token_id]
