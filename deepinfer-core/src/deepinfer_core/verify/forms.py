"""Answers of a form and answers behind thinking, for what `verify` runs.

Whether an answer belongs to its form is found out without the grammar that held it to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from deepinfer_core.config import EngineConfig
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core.engine_setup import LoadedModel
    from deepinfer_core.text.tokenizer import Tokenizer
    from deepinfer_core.verify.cases import Case

LENGTHENED = 3
"""An answer of a form may be so many times as long as others, so that some come to their end."""
_SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "bc", None]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 3},
        "name": {"type": "string", "maxLength": 6},
    },
    "required": ["kind", "sizes"],
    "additionalProperties": False,
}
_REGEX = "(ab|c[0-9]{1,3})+x"
_GRAMMAR = 'root ::= "(" root ")" root | "."'
_CHOICE = ("no", "never", "not now")


@dataclass(frozen=True, slots=True)
class _Form:
    structured: dict[str, Any]
    belongs: Callable[[str], bool]
    sampling: dict[str, Any] = field(default_factory=dict)
    """Where draws are not greedy."""
    budget: int | None = None
    """Tokens of thinking before the answer; None: it does not think."""


def _fits_schema(text: str) -> bool:
    answer = json.loads(text)
    return (
        list(answer) in (["kind", "sizes"], ["kind", "sizes", "name"])
        and answer["kind"] in ("a", "bc", None)
        and all(isinstance(size, int) and size >= 0 for size in answer["sizes"])
        and len(answer["sizes"]) <= 3
        and len(answer.get("name", "")) <= 6
    )


def _is_balanced(text: str) -> bool:
    while "(.)." in text:
        text = text.replace("(.).", ".")
    return text == "."


def _is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


FORMS = (
    _Form({"json_schema": _SCHEMA, "max_whitespace": 1}, _fits_schema, {"temperature": 0.9}),
    _Form({"json_schema": _SCHEMA}, _fits_schema, {"presence_penalty": 0.5, "top_p": 0.95}),
    _Form({"regex": _REGEX}, lambda text: bool(re.fullmatch(_REGEX, text)), {"min_p": 0.01}),
    _Form({"grammar": _GRAMMAR}, _is_balanced, {"temperature": 0.8, "top_k": 30}),
    _Form({"choice": _CHOICE}, _CHOICE.__contains__, {"logit_bias": {1: 2.0}}),
    _Form({"json_object": True}, _is_object),
    _Form({"json_schema": _SCHEMA}, _fits_schema, {"temperature": 1.0}, budget=5),
    _Form({"choice": _CHOICE}, _CHOICE.__contains__, {"frequency_penalty": 0.4}, budget=0),
)


def form_cases(
    cases: Sequence[Case], loaded: LoadedModel, config: EngineConfig, seed: int
) -> list[Case]:
    """Cases whose answers have a form, made from some of those that have none.

    Args:
        config: from `with_thinking`.
    """
    if not any(map(_is_installed, loaded.grammar_backends)):
        return []
    rng, tokenizer = Random(f"forms-{seed}"), loaded.tokenizer
    start = tokenizer.token_to_id(config.structured.thinking_start)
    end = tokenizer.token_to_id(config.structured.thinking_end)
    made = [
        _of_form(rng.choice(cases), form, tokenizer, start, end)
        for form in FORMS
        if form.budget is None or (start is not None and end is not None)
    ]
    markup = _markup(tokenizer, loaded.info.eos_token_ids)
    return made if markup is None else [*made, _of_form(rng.choice(cases), markup, tokenizer)]


def with_thinking(config: EngineConfig, loaded: LoadedModel) -> EngineConfig:
    """A configuration whose tokens of thinking are there, whatever they are called."""
    known = loaded.tokenizer.added_tokens
    names = (config.structured.thinking_start, config.structured.thinking_end)
    if set(names) <= set(known.values()):
        return config
    spare = [name for i, name in sorted(known.items()) if i not in loaded.info.eos_token_ids]
    if len(spare) < 2:
        return config
    changes = {"thinking_start": spare[0], "thinking_end": spare[1]}
    structured = config.structured.model_copy(update=changes)
    return config.model_copy(update={"structured": structured})


def _of_form(
    case: Case, form: _Form, tokenizer: Tokenizer, start: int | None = None, end: int | None = None
) -> Case:
    fields = case.params.model_dump(exclude_unset=True)
    is_greedy = case.params.temperature == 0
    kept = {name: fields[name] for name in ("seed", "logprobs")}
    params = SamplingParams(
        **kept,
        **({"temperature": 0} if is_greedy else form.sampling),
        max_tokens=LENGTHENED * (case.params.max_tokens or 1),
        structured=form.structured,
        thinking_budget=form.budget,
    )
    thinks = form.budget is not None
    prompt = (
        (*case.prompt_token_ids, start) if thinks and start is not None else case.prompt_token_ids
    )

    def belongs(token_ids: Sequence[int]) -> bool:
        answer = list(token_ids)
        if thinks and end is not None:
            if end not in answer[: (form.budget or 0) + 1]:
                return False
            answer = answer[answer.index(end) + 1 :]
        try:
            return form.belongs(tokenizer.decode(answer))
        except (ValueError, KeyError, TypeError):  # no JSON, or other fields
            return False

    return replace(case, prompt_token_ids=prompt, params=params, belongs=belongs)


def _markup(tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> _Form | None:
    """A call behind free text, with a token of the vocabulary around it."""
    names = [name for i, name in sorted(tokenizer.added_tokens.items()) if i not in eos_token_ids]
    if not names:
        return None
    call = {"all": [{"token": names[0]}, {"json_schema": _SCHEMA}, {"token": names[0]}]}
    return _Form({"markup": {"times": [call, 1, 2]}}, lambda text: "kind" in text, {"top_p": 0.9})


def _is_installed(spec: Any) -> bool:
    try:
        spec.load()
    except ImportError:
        return False
    return True
