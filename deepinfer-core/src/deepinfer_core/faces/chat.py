"""Conversations to prompts: through a recipe where one serves the model, else its chat template.

A recipe comes from a plugin and is reached by two methods only. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

from pydantic import ValidationError

from deepinfer_core.errors import RequestError
from deepinfer_core.faces.images import ImageReader
from deepinfer_core.faces.prompts import EncodedPrompt
from deepinfer_core.plugin_api.recipe import EncodedChat, Recipe, ReplyParser
from deepinfer_core.structured.constraint import ThinkingStart
from deepinfer_core.structured.spec import StructuredOutput
from deepinfer_core.text.template import ChatTemplate
from deepinfer_core.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
Conversation = Sequence[Message]
_OPTIONS = ("tools", "add_generation_prompt", "continue_final_message")
_RESERVED = frozenset({"messages", "template_name", *_OPTIONS})
"""What `chat_template_kwargs` may not hold."""


class ChatOptions(TypedDict, total=False):
    """How a conversation is encoded; all of it optional."""

    tools: Sequence[Mapping[str, Any]] | None
    """JSON schemas of functions that the model may call."""
    add_generation_prompt: bool
    """End with what begins the model's own turn; the default is True."""
    continue_final_message: bool
    """End inside the last message, so that the model goes on with it."""
    chat_template_kwargs: Mapping[str, Any] | None
    """Variables of the template, or fields of the recipe's request."""


class ChatEncoder:
    """Encodes conversations for one model. Thread-safe.

    Args:
        template: None: the model has none.
        recipe: takes precedence over the template.
        images: makes those of the recipe ready; default: refuses them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        template: ChatTemplate | None,
        recipe: Recipe | None = None,
        images: ImageReader | None = None,
    ) -> None:
        self._tokenizer, self._template, self._recipe = tokenizer, template, recipe
        self.images = images or ImageReader()

    def encode(self, messages: Conversation, **options: Unpack[ChatOptions]) -> EncodedPrompt:
        """Encode one conversation.

        Raises:
            RequestError: the conversation is malformed, the model takes no conversations, or its
                template or recipe refused.
        """
        if self._recipe is not None:
            return self._encode_with_recipe(self._recipe, messages, options)
        if self._template is None:
            raise RequestError(
                "this model has no chat template; use generate, or give a template file as "
                "`chat_template`",
                field="messages",
            )
        continues = options.get("continue_final_message", False)
        text = self._template.render(
            messages,
            tools=options.get("tools"),
            add_generation_prompt=options.get("add_generation_prompt", True),
            continue_final_message=continues,
            **_variables(options),
        )
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        # What a template says of thinking stands at the end of its text, if it says anything.
        thinking: ThinkingStart | None = None if continues else "undecided"
        return EncodedPrompt(token_ids, text, continues_text=continues, thinking=thinking)

    def _encode_with_recipe(
        self, recipe: Recipe, messages: Conversation, options: ChatOptions
    ) -> EncodedPrompt:
        encoded = _ask_recipe(recipe, messages, options)
        return EncodedPrompt(
            encoded.token_ids,
            stop_token_ids=tuple(encoded.stop_token_ids),
            continues_text=False,
            make_parser=partial(_make_parser, recipe, encoded),
            images=self.images.prepare(encoded.images, field="messages"),
            structured=_form(encoded, options),
            thinking="open" if encoded.starts_in_reasoning else "closed",
        )


def _ask_recipe(recipe: Recipe, messages: Conversation, options: ChatOptions) -> EncodedChat:
    chat: dict[str, Any] = {**_variables(options), "messages": messages}
    if tools := options.get("tools"):
        chat["tools"] = tools
    if options.get("continue_final_message"):
        chat["continue_final_message"] = True
    elif not options.get("add_generation_prompt", True):
        raise RequestError(
            "this model's recipe always begins an answer; leave add_generation_prompt out",
            field="add_generation_prompt",
        )
    try:
        return recipe.encode(chat)
    except RequestError:
        raise
    except Exception as error:  # a plugin's border; whatever it raises ends one request
        raise RequestError(f"the recipe refused: {error}", field="messages") from error


def _form(encoded: EncodedChat, options: ChatOptions) -> StructuredOutput | None:
    if encoded.constraint is None:
        return None
    named = options.get("chat_template_kwargs") or {}
    field = next((name for name in ("response_format", "tool_choice") if name in named), "tools")
    try:
        return StructuredOutput(**encoded.constraint)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise RequestError(
            f"{field}: the form that it asks for cannot be held: {reason}", field=field
        ) from error


def _make_parser(recipe: Recipe, encoded: EncodedChat) -> ReplyParser:
    try:
        return recipe.parser(encoded)
    except Exception as error:  # a plugin's border, as above
        raise RequestError(
            f"the recipe has no parser for the answer: {type(error).__name__}: {error}",
            field="messages",
        ) from error


def _variables(options: ChatOptions) -> dict[str, Any]:
    variables = options.get("chat_template_kwargs") or {}
    if not isinstance(variables, Mapping):
        raise RequestError(
            f"chat_template_kwargs is an object, not {type(variables).__name__}",
            field="chat_template_kwargs",
        )
    for name in variables:
        if not isinstance(name, str):
            raise RequestError(
                f"names in chat_template_kwargs are text, not {type(name).__name__}",
                field="chat_template_kwargs",
            )
        if name in _RESERVED:
            remedy = f"give {name} beside it" if name in _OPTIONS else "leave it out"
            raise RequestError(
                f"chat_template_kwargs cannot hold {name}; {remedy}",
                field=f"chat_template_kwargs.{name}",
            )
    return dict(variables)
