"""What a request asks of the sampler. Plain validated values, no tensors, no model knowledge.

Checks that need the model (token ids within the vocabulary, lengths) happen in `Engine.add`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from deepinfer_core.errors import UnsupportedSamplingError
from deepinfer_core.field_types import Flag, Real, Text, Whole, describe_allowed, short_repr
from deepinfer_core.structured.spec import StructuredOutput

MIN_TEMPERATURE = 1e-6
"""Dividing logits by less leaves the range in which float32 tells them apart; 0 is greedy."""


_MAX_PROBLEMS = 5
"""A message need not list every bad entry of a long list."""


def _token_id_key(key: object) -> object:
    """JSON objects have text for keys."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key


TokenId = Annotated[Whole, Field(ge=0)]
TokenIdKey = Annotated[Whole, BeforeValidator(_token_id_key), Field(ge=0)]


class SamplingParams(BaseModel):
    """How tokens are drawn and when a request ends.

    Fields that were not given take the model's own defaults (`generation_config.json`) where it
    has them; a field given explicitly always wins, also when it equals the default here.

    Raises:
        UnsupportedSamplingError: a field is unknown or malformed; names field, value, allowed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    temperature: Real = Field(default=1.0, ge=0.0, le=100.0)
    """0 is greedy (argmax after penalties, ties to the lower id); else at least 1e-6."""
    top_k: Whole = Field(default=0, ge=-1)
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: Real = Field(default=1.0, gt=0.0, le=1.0)
    """Keep the smallest set of most likely tokens whose probability reaches this."""
    min_p: Real = Field(default=0.0, ge=0.0, le=1.0)
    """Drop tokens less likely than this fraction of the most likely one."""
    presence_penalty: Real = Field(default=0.0, ge=-2.0, le=2.0)
    """Subtracted from the logit of every token that the output holds already."""
    frequency_penalty: Real = Field(default=0.0, ge=-2.0, le=2.0)
    """Subtracted once for each time that the output holds a token."""
    repetition_penalty: Real = Field(default=1.0, gt=0.0, le=100.0)
    """Over prompt and output (Keskar et al. 2019, arXiv:1909.05858, section 4.1); 1 is off."""
    logit_bias: dict[TokenIdKey, Real] | None = None
    """Token id to what is added to its logit."""
    allowed_token_ids: tuple[TokenId, ...] | None = None
    """Nothing else can be drawn. Must not be empty."""
    bad_words: tuple[Text, ...] = ()
    """Texts that must not be produced; compared as token sequences."""
    stop: tuple[Text, ...] = ()
    """Strings that end the output, also across token borders. A single string is accepted."""
    stop_token_ids: tuple[TokenId, ...] = ()
    """Tokens that end the output, beside the model's own end-of-sequence."""
    include_stop_str_in_output: Flag = False
    """Let the text end after the stop string instead of before it."""
    min_tokens: Whole = Field(default=0, ge=0)
    """End-of-sequence and stop tokens are masked before this many output tokens."""
    max_tokens: Whole | None = Field(default=16, ge=1)
    """None: as many as `max_model_len` leaves."""
    ignore_eos: Flag = False
    """Go on after the end-of-sequence token."""
    seed: Whole | None = Field(default=None, ge=-(2**63), lt=2**64)
    """None: drawn at random; the seed used is returned with the output."""
    n: Whole = Field(default=1, ge=1, le=1024)
    """Samples for the prompt, which is computed once."""
    logprobs: Whole | None = Field(default=None, ge=0)
    """Log-probabilities of the drawn token and of this many most likely ones."""
    prompt_logprobs: Whole | None = Field(default=None, ge=0)
    """The same for each prompt token but the first. Cached positions are recomputed."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """Of the model's logits, or of the logits after all stages."""
    logits_stages: tuple[Text, ...] = ()
    """Names of custom stages that plugins registered, applied in this order."""
    structured: StructuredOutput | None = None
    """The form of the answer, such as `{"json_schema": {...}}`. It begins where thinking ends."""
    thinking_budget: Whole | None = Field(default=None, ge=0)
    """Tokens of thinking, after which its end is drawn; None: no limit."""

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise _as_request_error(error) from None

    @field_validator("stop", "bad_words", "logits_stages", mode="before")
    @classmethod
    def _one_text_is_a_list(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else () if value is None else value

    @field_validator("stop_token_ids", mode="before")
    @classmethod
    def _null_is_none(cls, value: object) -> object:
        return () if value is None else value

    @field_validator("stop", "bad_words")
    @classmethod
    def _usable_texts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text for text in value):
            raise ValueError("an empty string is not allowed here")
        if any("\ud800" <= character <= "\udfff" for text in value for character in text):
            raise ValueError("a lone surrogate is no text")
        return value

    @field_validator("temperature")
    @classmethod
    def _zero_or_usable(cls, value: float) -> float:
        if 0.0 < value < MIN_TEMPERATURE:
            raise ValueError(f"give 0 for greedy, or at least {MIN_TEMPERATURE}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> SamplingParams:
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ValueError("allowed_token_ids must name at least one token, or be left out")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}")
        return self

    def with_defaults(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Fill the fields that were not given explicitly from `defaults`."""
        missing = {k: v for k, v in defaults.items() if k not in self.model_fields_set}
        return SamplingParams(**{**self.model_dump(exclude_unset=True), **missing})


def _as_request_error(error: ValidationError) -> UnsupportedSamplingError:
    problems = error.errors(include_url=False)
    first = problems[0]["loc"]
    return UnsupportedSamplingError(
        "; ".join(_describe_problem(problem) for problem in problems[:_MAX_PROBLEMS]),
        field=str(first[0]) if first else None,
    )


def _describe_problem(problem: ErrorDetails) -> str:
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return message
    path = ".".join(str(part) for part in problem["loc"] if part != "[key]")
    name, *inner = map(str, problem["loc"])
    fields = SamplingParams.model_fields
    if name == "structured" and inner:
        name, fields = inner[0], StructuredOutput.model_fields
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, fields, n=1)
        hint = f" did you mean {close[0]}?" if close else ""
        return f"{path}: unknown parameter;{hint} known are {', '.join(sorted(fields))}"
    allowed = describe_allowed(fields[name])
    return f"{path} = {short_repr(problem['input'])}: {message}; allowed: {allowed}"
