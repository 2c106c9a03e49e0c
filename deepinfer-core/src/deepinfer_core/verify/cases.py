"""What `verify` runs: prompts with their parameters, and random combinations of features.

Everything follows from a seed and a point's index, which are enough to run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from deepinfer_core.images import PreparedImage
from deepinfer_core.sampling_params import SamplingParams

NUM_SAMPLES = 3
"""The plain run draws this many samples of each prompt; a point compares its first n."""
NUM_COMMON = 48
"""Tokens that half of the prompts begin with."""
REHEARSED = "rehearsed"
TWIN = "twin"
"""The model itself as its draft model, with mistakes."""
OWN = "own"
"""The drafter that the checkpoint has."""
MAX_DRAFTS = 8
LONG_CASES = (1, 3, 5, 7)
"""Those that begin with the common tokens."""
STOP_PAIRS = 9
"""One of so many pairs of ids ends an answer."""
NUM_LOGPROBS = 2
"""The most likely two tokens tell how close a greedy decision was."""


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt and how it is sampled."""

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    images: tuple[PreparedImage, ...] = ()
    """One for each image token of the prompt."""
    stops_at_pair: bool = False
    """The edge ends it where two ids complete what stands for a stop string, see `stop_end`."""
    belongs: Callable[[Sequence[int]], bool] | None = None
    """Whether a whole answer has the form that was asked for; None: it may have any."""

    @property
    def max_total_tokens(self) -> int:
        """Prompt, its images in full length, and output."""
        num_image_tokens = sum(image.num_tokens - 1 for image in self.images)
        return len(self.prompt_token_ids) + num_image_tokens + (self.params.max_tokens or 0)

    def has_form(self, token_ids: Sequence[int], reason: str | None) -> bool:
        """Whether an answer that ended so is as it must be."""
        return self.belongs is None or reason != "stop" or self.belongs(token_ids)

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of features. `Point.plain` is none of them."""

    index: int
    batch_size: int
    chunk_tokens: int
    block_size: int
    prefix_cache: bool
    preemption: bool
    overlap: bool
    priorities: bool
    shuffled: bool
    """Arrival in another order, and some requests only after others have begun."""
    n: int
    cases: tuple[int, ...] | None = None
    """Which of the cases run; None: all."""
    aborts: bool = False
    """One request is given up on the way."""
    proposer: str | None = None
    """Who guesses tokens; `rehearsed` knows the plain run's answers and gets some wrong."""
    num_drafts: int = 0
    guard: bool = False
    """What is not worth its time is not computed; what steps cost is made up."""

    @classmethod
    def plain(cls, longest: int, *, block_size: int) -> Point:
        """One request at a time, whole prompts, nothing else."""
        return cls(
            index=-1,
            batch_size=1,
            chunk_tokens=longest,
            block_size=block_size,
            prefix_cache=False,
            preemption=False,
            overlap=False,
            priorities=False,
            shuffled=False,
            n=NUM_SAMPLES,
        )

    @classmethod
    def random(
        cls,
        seed: int,
        index: int,
        longest: int,
        *,
        num_cases: int,
        drafters: Sequence[str] = (),
    ) -> Point:
        """The combination that belongs to a seed and an index.

        Args:
            longest: tokens of the longest case.
            drafters: of `TWIN` and `OWN`, those that there are.
        """
        rng = Random(f"point-{seed}-{index}")
        cases = set(rng.sample(range(num_cases), min(num_cases, rng.choice((1, 2, 3)))))
        cases.add(rng.choice(LONG_CASES))  # what is to hit the cache must fill blocks
        batch_size = rng.choice((1, 2, 3, 5, 8, 16))
        return cls(
            index=index,
            batch_size=batch_size,
            chunk_tokens=rng.choice((max(6, batch_size), batch_size + 9, 37, 64, longest)),
            block_size=rng.choice((4, 8, 16, 32)),
            prefix_cache=rng.random() < 0.6,
            preemption=rng.random() < 0.5,
            overlap=rng.random() < 0.7,
            priorities=rng.random() < 0.3,
            shuffled=rng.random() < 0.7,
            n=rng.choice((1, 1, 1, 2, NUM_SAMPLES)),
            cases=tuple(sorted(cases)),
            aborts=rng.random() < 0.3,
            proposer=rng.choice(
                (None, REHEARSED, REHEARSED, "ngram", "suffix", *drafters, *drafters)
            ),
            num_drafts=rng.randint(1, MAX_DRAFTS),
            guard=rng.random() < 0.3,
        )

    @property
    def features(self) -> str:
        """For people: what is on."""
        names = ("prefix_cache", "preemption", "overlap", "priorities", "shuffled", "aborts")
        on = [name.replace("_", " ") for name in names if getattr(self, name)]
        if self.n > 1:
            on.append(f"n={self.n}")
        if self.proposer is not None:
            on.append(f"{self.proposer} x{self.num_drafts}{' guarded' if self.guard else ''}")
        return ", ".join(on) or "-"


def make_cases(
    seed: int,
    *,
    vocab_size: int,
    max_tokens: int,
    texts: Sequence[Sequence[int]],
    greedy_only: bool,
    num_common: int = NUM_COMMON,
) -> list[Case]:
    """Prompts of many lengths, some with a common beginning, each with its own parameters.

    Args:
        texts: real texts as token ids, which prompts are cut from.
        greedy_only: leave sampling out, for kernels that promise only close logits.
        num_common: tokens that half of the prompts have in common.
    """
    rng = Random(f"cases-{seed}")
    common = _passage(rng, texts, vocab_size, num_common)
    lengths = (1, 7, 15, 16, 17, 33, 64, 90, 5, 21)
    prompts = [
        (*(common if index % 2 else ()), *_passage(rng, texts, vocab_size, length))
        for index, length in enumerate(lengths)
    ]
    styles = _styles(rng, vocab_size)
    return [
        Case(
            prompt,
            SamplingParams(
                max_tokens=max_tokens,
                logprobs=NUM_LOGPROBS,
                seed=rng.getrandbits(63),
                **({"temperature": 0} if greedy_only else styles[index % len(styles)]),
            ),
            stops_at_pair=index % 3 == 2,
        )
        for index, prompt in enumerate(prompts)
    ]


def stop_end(token_ids: Sequence[int]) -> int | None:
    """Where the first pair of ids that stands for a stop string ends; None: there is none."""
    for end in range(2, len(token_ids) + 1):
        if sum(token_ids[end - 2 : end]) % STOP_PAIRS == 0:
            return end
    return None


def with_samples(case: Case, n: int) -> SamplingParams:
    """The case's parameters for n samples."""
    return SamplingParams(**{**case.params.model_dump(exclude_unset=True), "n": n})


def _passage(
    rng: Random, texts: Sequence[Sequence[int]], vocab_size: int, length: int
) -> tuple[int, ...]:
    if not texts or rng.random() < 0.25:
        return tuple(rng.randrange(vocab_size) for _ in range(length))
    text = rng.choice(texts)
    start = rng.randrange(max(1, len(text) - length))
    passage = tuple(text[start : start + length])
    return passage + tuple(rng.randrange(vocab_size) for _ in range(length - len(passage)))


def _styles(rng: Random, vocab_size: int) -> list[dict[str, Any]]:
    some = [rng.randrange(vocab_size) for _ in range(3)]
    few = [rng.randrange(vocab_size) for _ in range(6)]
    return [
        {"temperature": 0},
        {"temperature": 0.9},
        {"temperature": 0, "repetition_penalty": 1.3, "min_tokens": 4},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
        {"temperature": 1.0, "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"temperature": 0, "logit_bias": {some[0]: 2.0, some[1]: -5.0}, "stop_token_ids": some[2:]},
        {"temperature": 0.8, "prompt_logprobs": 1},
        {"temperature": 0, "ignore_eos": True},
        {"temperature": 0.9, "allowed_token_ids": few, "frequency_penalty": 1.5},
        {"temperature": 0.6, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.2},
    ]
