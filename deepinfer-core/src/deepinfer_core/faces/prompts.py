"""Prompts and parameters as people write them, turned into one checked item each, and the form in
which an encoder hands a prompt on.

Knows no tokenizer: text stays text. A bad item becomes a `RequestError` of its own and costs
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer_core.errors import ConfigError, RequestError
from deepinfer_core.images import PreparedImage
from deepinfer_core.plugin_api.recipe import ReplyParser
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.structured.constraint import ThinkingStart
from deepinfer_core.structured.spec import StructuredOutput

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or `{"prompt": text}` or `{"prompt_token_ids": ids}`, these also with
`"images": [...]`, one for each image token of the prompt."""
Params = SamplingParams | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PromptItem:
    """One prompt: text, or ids, or what is wrong with it."""

    text: str | None = None
    token_ids: Sequence[int] | None = None
    images: Sequence[object] = ()
    error: RequestError | None = None


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Ids of one prompt and what has to be known to read its answer."""

    token_ids: Sequence[int]
    text: str | None = None
    """As the model sees it; None when ids were given or a recipe made them."""
    stop_token_ids: tuple[int, ...] = ()
    """Added to the request's own."""
    continues_text: bool = True
    """The output goes on from the prompt's text; False: it is a text of its own, as in a chat."""
    make_parser: Callable[[], ReplyParser] | None = None
    """Makes what reads one answer; raises RequestError only. None: the answer is the text."""
    images: tuple[PreparedImage, ...] = ()
    """One for each image token among the ids."""
    structured: StructuredOutput | None = None
    """The form that the conversation asks for."""
    thinking: ThinkingStart | None = None
    """Whether the prompt ends inside of thinking; None: as its last tokens say."""


def split_prompts(prompts: Prompt | Iterable[Prompt]) -> list[PromptItem]:
    """Tell one prompt from many, and check the shape of each. An empty list is no prompt."""
    prompts = _plain(prompts)
    single = isinstance(prompts, (str, bytes, Mapping)) or not isinstance(prompts, Iterable)
    if single or _is_token_ids(prompts):
        return [parse_prompt(prompts)]
    return [parse_prompt(prompt) for prompt in prompts]


def parse_prompt(prompt: object) -> PromptItem:
    """Check the shape of one prompt."""
    prompt = _plain(prompt)
    if isinstance(prompt, Mapping):
        return _parse_mapping(prompt)
    if isinstance(prompt, str):
        return PromptItem(text=prompt)
    if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
        return PromptItem(token_ids=prompt)
    return _bad(f"a prompt is text or a list of token ids, not {type(prompt).__name__}")


def split_params(params: Params | Sequence[Params] | None, count: int) -> Sequence[Params | None]:
    """One entry for each of `count` prompts; a single value (or None) serves all.

    Raises:
        ConfigError: neither parameters nor a list, or a list of another length.
    """
    if params is None or isinstance(params, (SamplingParams, Mapping)):
        return [params] * count
    if isinstance(params, (str, bytes)) or not isinstance(params, Sequence):
        raise ConfigError(
            "these are no sampling parameters",
            field="sampling_params",
            value=params,
            allowed="SamplingParams or a mapping, or a list with one for each prompt",
        )
    if len(params) != count:
        raise ConfigError(
            f"{count} prompts but {len(params)} sampling parameters: give one, or one for each"
        )
    return params


def parse_params(params: object) -> SamplingParams:
    """Turn a mapping or None into `SamplingParams`.

    Raises:
        RequestError: a field is unknown or malformed, or this is no mapping.
    """
    if isinstance(params, SamplingParams):
        return params
    if params is None:
        return SamplingParams()
    if not isinstance(params, Mapping):
        raise RequestError(
            f"sampling parameters are SamplingParams or a mapping, not {type(params).__name__}",
            field="sampling_params",
        )
    return SamplingParams(**{str(name): value for name, value in params.items()})


def _parse_mapping(prompt: Mapping[str, Any]) -> PromptItem:
    images = prompt.get("images", ())
    names = prompt.keys() - {"images"}
    if len(names) != 1 or not names <= {"prompt", "prompt_token_ids"}:
        return _bad(
            f"a prompt mapping has exactly one of 'prompt' and 'prompt_token_ids', and maybe "
            f"'images'; this one has {sorted(map(str, prompt))}"
        )
    (name,) = names
    value = prompt[name]
    if name == "prompt" and not isinstance(value, str):
        return _bad(f"'prompt' must be text, not {type(value).__name__}")
    if name == "prompt_token_ids" and (isinstance(value, str) or not isinstance(value, Sequence)):
        return _bad(f"'prompt_token_ids' must be a list, not {type(value).__name__}")
    if isinstance(images, (str, bytes)) or not isinstance(images, Sequence):
        return _bad(f"'images' must be a list, not {type(images).__name__}")
    if name == "prompt":
        return PromptItem(text=value, images=images)
    return PromptItem(token_ids=value, images=images)


def _is_token_ids(prompts: object) -> bool:
    return (
        isinstance(prompts, Sequence)
        and bool(prompts)
        and all(hasattr(type(token_id), "__index__") for token_id in prompts)
    )


def _plain(prompts: Any) -> Any:
    """Arrays and tensors as lists; anything else as it is."""
    return prompts.tolist() if hasattr(prompts, "tolist") else prompts


def _bad(message: str) -> PromptItem:
    return PromptItem(error=RequestError(message, field="prompt"))
