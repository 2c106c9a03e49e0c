"""`Encoder`: whatever a person gives, as ids for one model. Also chooses how chats are encoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack, cast

from deepinfer_core.config import ModelConfig
from deepinfer_core.errors import PluginError, RequestError
from deepinfer_core.faces.chat import ChatEncoder, ChatOptions, Conversation
from deepinfer_core.faces.images import ImageReader
from deepinfer_core.faces.prompts import (
    EncodedPrompt,
    Prompt,
    PromptItem,
    parse_prompt,
    split_prompts,
)
from deepinfer_core.models.vision.config import VisionConfig
from deepinfer_core.plugin_api.recipe import Recipe
from deepinfer_core.plugins import PluginHost
from deepinfer_core.text.template import ChatTemplate, load_template_file
from deepinfer_core.text.tokenizer import Tokenizer

Encoded = EncodedPrompt | RequestError


class Encoder:
    """Encodes prompts and conversations for one model. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatEncoder) -> None:
        self.tokenizer = tokenizer
        self._chat = chat

    def prompts(self, prompts: Prompt | Iterable[Prompt]) -> list[Encoded]:
        """Encode one prompt or many; what is wrong with one stands in its place."""
        items = split_prompts(prompts)
        texts = iter(
            self.tokenizer.encode_batch([item.text for item in items if item.text is not None])
        )
        encoded: list[Encoded] = []
        for item in items:
            ids = item.token_ids if item.text is None else next(texts)
            try:
                encoded.append(self._encoded(item, ids))
            except RequestError as error:
                encoded.append(error)
        return encoded

    def prompt(self, prompt: Prompt) -> EncodedPrompt:
        """Encode one prompt.

        Raises:
            RequestError: it is malformed.
        """
        item = parse_prompt(prompt)
        ids = item.token_ids if item.text is None else self.tokenizer.encode(item.text)
        return self._encoded(item, ids)

    def chat(self, messages: Conversation, **options: Unpack[ChatOptions]) -> EncodedPrompt:
        """Encode one conversation.

        Raises:
            RequestError: it is malformed, or the model takes none.
        """
        return self._chat.encode(messages, **options)

    def chats(
        self, messages: Conversation | Sequence[Conversation], **options: Unpack[ChatOptions]
    ) -> list[Encoded]:
        """Encode one conversation or many; what is wrong with one stands in its place."""
        single = is_conversation(messages) or not isinstance(messages, Sequence)
        conversations = [messages] if single else messages
        encoded: list[Encoded] = []
        for conversation in cast(Sequence[Conversation], conversations):
            try:
                encoded.append(self._chat.encode(conversation, **options))
            except RequestError as error:
                encoded.append(error)
        return encoded

    def either(
        self, prompt_or_messages: Prompt | Conversation, **options: Unpack[ChatOptions]
    ) -> EncodedPrompt:
        """Encode a prompt or a conversation, whichever this is.

        Raises:
            RequestError: it is malformed; or it is a prompt, and there are options for chats.
        """
        if is_conversation(prompt_or_messages):
            return self.chat(cast(Conversation, prompt_or_messages), **options)
        if options:
            raise RequestError(f"{next(iter(options))} needs messages, not a prompt")
        return self.prompt(cast(Prompt, prompt_or_messages))

    def _encoded(
        self, item: PromptItem, token_ids: Sequence[int] | RequestError | None
    ) -> EncodedPrompt:
        for error in (item.error, token_ids):
            if isinstance(error, RequestError):
                raise error
        images = self._chat.images.prepare(item.images)
        return EncodedPrompt(cast(Sequence[int], token_ids), item.text, images=images)


def is_conversation(messages: object) -> bool:
    """Whether this is one conversation rather than a prompt or a list of conversations."""
    return isinstance(messages, Sequence) and any(isinstance(m, Mapping) for m in messages)


def make_encoder(
    config: ModelConfig,
    tokenizer: Tokenizer,
    *,
    host: PluginHost,
    architecture: str,
    vision: VisionConfig | None = None,
) -> Encoder:
    """The encoder that a configuration and the installed plugins give.

    A template file that a person names wins over a recipe, and a recipe over the model's own
    template.

    Args:
        vision: what images are prepared for; None: the model takes none.

    Raises:
        ConfigError: the template file cannot be used.
        PluginError: two recipes serve the architecture, or the one that does cannot be made.
    """
    template: ChatTemplate | None = None
    recipe: Recipe | None = None
    if config.chat_template is not None:
        template = load_template_file(config.chat_template, tokenizer.special_tokens)
    else:
        recipe = _find_recipe(host, architecture, tokenizer)
        if tokenizer.chat_templates:
            template = ChatTemplate(
                tokenizer.chat_templates, special_tokens=tokenizer.special_tokens
            )
    images = ImageReader(vision, recipe)
    chat = ChatEncoder(tokenizer, template=template, recipe=recipe, images=images)
    return Encoder(tokenizer, chat)


def _find_recipe(host: PluginHost, architecture: str, tokenizer: Tokenizer) -> Recipe | None:
    serving = [spec for spec in host.recipes() if architecture in spec.architectures]
    if not serving:
        return None
    if len(serving) > 1:
        names = " and ".join(spec.name for spec in serving)
        raise PluginError(f"recipes {names} both serve {architecture}; block one of their plugins")
    spec = serving[0]
    try:
        make: Any = spec.load()
        recipe: Recipe = make(architecture=architecture, tokenizer_json=tokenizer.to_json())
    except Exception as error:  # a plugin's border
        raise PluginError(
            f"recipe {spec.name} cannot be made: {type(error).__name__}: {error}",
            hook="deepinfer_recipes",
        ) from error
    return recipe
