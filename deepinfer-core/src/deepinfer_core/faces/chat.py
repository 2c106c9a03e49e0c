"""Conversations to prompts: through a recipe where one serves the model, else its chat template.

A recipe comes from a plugin and is reached by two methods only. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict, Unpack

from deepinfer_core.errors import RequestError
from deepinfer_core.faces.prompts import EncodedPrompt
from deepinfer_core.text.template import ChatTemplate
from deepinfer_core.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
Conversation = Sequence[Message]


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


class EncodedChat(Protocol):
    """What a recipe makes of a conversation."""

    @property
    def token_ids(self) -> Sequence[int]: ...

    @property
    def images(self) -> Sequence[object]: ...

    @property
    def constraint(self) -> object | None: ...

    @property
    def starts_in_reasoning(self) -> bool: ...

    @property
    def stop_token_ids(self) -> Sequence[int]: ...


class ReplyParser(Protocol):
    """Turns output ids into events."""

    def feed(self, token_ids: Sequence[int]) -> Sequence[object]: ...

    def finish(self) -> Sequence[object]: ...


class Recipe(Protocol):
    """The protocol of a family of models, as `RecipeSpec.target` provides it."""

    def encode(self, chat: dict[str, Any]) -> EncodedChat:
        """Encode a Chat Completions request, a plain dict with `messages` and maybe `tools`."""
        ...

    def parser(self, encoded: EncodedChat) -> ReplyParser: ...


class ChatEncoder:
    """Encodes conversations for one model. Thread-safe.

    Args:
        template: None: the model has none.
        recipe: takes precedence over the template.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, template: ChatTemplate | None, recipe: Recipe | None = None
    ) -> None:
        self._tokenizer, self._template, self._recipe = tokenizer, template, recipe

    def encode(self, messages: Conversation, **options: Unpack[ChatOptions]) -> EncodedPrompt:
        """Encode one conversation.

        Raises:
            RequestError: the conversation is malformed, the model takes no conversations, or its
                template or recipe refused.
        """
        if self._recipe is not None:
            return _encode_with_recipe(self._recipe, messages, options)
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
        return EncodedPrompt(token_ids, text, continues_text=continues)


def _encode_with_recipe(
    recipe: Recipe, messages: Conversation, options: ChatOptions
) -> EncodedPrompt:
    chat: dict[str, Any] = {**_variables(options), "messages": messages}
    if tools := options.get("tools"):
        chat["tools"] = tools
    if options.get("continue_final_message"):
        chat["continue_final_message"] = True
    try:
        encoded = recipe.encode(chat)
    except RequestError:
        raise
    except Exception as error:  # a plugin's border; whatever it raises ends one request
        raise RequestError(f"the recipe refused: {error}", field="messages") from error
    if encoded.images or encoded.constraint is not None:
        what = "images" if encoded.images else "a constrained answer"
        raise RequestError(f"this engine cannot serve {what}; leave that out", field="messages")
    return EncodedPrompt(
        encoded.token_ids, stop_token_ids=tuple(encoded.stop_token_ids), continues_text=False
    )


def _variables(options: ChatOptions) -> dict[str, Any]:
    variables = options.get("chat_template_kwargs") or {}
    if not isinstance(variables, Mapping):
        raise RequestError(
            f"chat_template_kwargs is an object, not {type(variables).__name__}",
            field="chat_template_kwargs",
        )
    return {str(name): value for name, value in variables.items()}
