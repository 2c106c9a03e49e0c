"""What a request asks of the sampler. Plain validated values, no tensors, no model knowledge.

Checks that need the model (token ids within the vocabulary, lengths) happen in `Engine.add`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from deepinfer_core.errors import UnsupportedSamplingError

TokenId = Annotated[int, Field(ge=0)]


class SamplingParams(BaseModel):
    """How tokens are drawn and when a request ends.

    Fields that were not given take the model's own defaults (`generation_config.json`) where it
    has them; a field given explicitly always wins, also when it equals the default here.

    Raises:
        UnsupportedSamplingError: a field is unknown or malformed; names field, value, allowed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    temperature: float = Field(1.0, ge=0.0, le=100.0)
    """0 is greedy (argmax after penalties, ties to the lower id)."""
    top_k: int = Field(0, ge=-1)
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    """Keep the smallest set of most likely tokens whose probability reaches this."""
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    """Drop tokens less likely than this fraction of the most likely one."""
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    repetition_penalty: float = Field(1.0, gt=0.0, le=100.0)
    """Over prompt and output (Keskar et al. 2019, arXiv:1909.05858, section 4.1); 1 is off."""
    logit_bias: dict[TokenId, float] | None = None
    allowed_token_ids: tuple[TokenId, ...] | None = None
    """Nothing else can be drawn. Must not be empty."""
    bad_words: tuple[str, ...] = ()
    """Texts that must not be produced; compared as token sequences."""
    stop: tuple[str, ...] = ()
    """Strings that end the output, also across token borders. A single string is accepted."""
    stop_token_ids: tuple[TokenId, ...] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = Field(0, ge=0)
    """End-of-sequence and stop tokens are masked before this many output tokens."""
    max_tokens: int | None = Field(16, ge=1)
    """None: as many as `max_model_len` leaves."""
    ignore_eos: bool = False
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    """None: drawn at random; the seed used is returned with the output."""
    n: int = Field(1, ge=1, le=1024)
    """Samples for the prompt, which is computed once."""
    logprobs: int | None = Field(None, ge=0)
    """Log-probabilities of the drawn token and of this many most likely ones."""
    prompt_logprobs: int | None = Field(None, ge=0)
    """The same for each prompt token but the first. Cached positions are recomputed."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """Of the model's logits, or of the logits after all stages."""
    logits_stages: tuple[str, ...] = ()
    """Names of custom stages that plugins registered, applied in this order."""

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise _as_request_error(error) from None

    @field_validator("stop", "bad_words", mode="before")
    @classmethod
    def _one_string_is_a_list(cls, value: object) -> object:
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else value

    @field_validator("stop", "bad_words")
    @classmethod
    def _no_empty_strings(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text for text in value):
            raise ValueError("an empty string is not allowed here")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> SamplingParams:
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ValueError("allowed_token_ids must name at least one token, or be left out")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}")
        return self

    def with_defaults(self, defaults: dict[str, Any]) -> SamplingParams:
        """Fill the fields that were not given explicitly from `defaults`."""
        missing = {k: v for k, v in defaults.items() if k not in self.model_fields_set}
        return SamplingParams(**{**self.model_dump(exclude_unset=True), **missing})


def _as_request_error(error: ValidationError) -> UnsupportedSamplingError:
    problems = []
    for item in error.errors(include_url=False):
        field = ".".join(str(part) for part in item["loc"]) or "sampling parameters"
        if item["type"] == "extra_forbidden":
            known = ", ".join(sorted(SamplingParams.model_fields))
            problems.append(f"{field}: unknown parameter; known are {known}")
        else:
            problems.append(f"{field} = {item['input']!r}: {item['msg']}")
    first = error.errors(include_url=False)[0]["loc"]
    return UnsupportedSamplingError("; ".join(problems), field=str(first[0]) if first else None)
