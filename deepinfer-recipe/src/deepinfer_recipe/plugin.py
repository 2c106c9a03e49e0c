"""What `deepinfer` finds of this package: recipes for DeepSeek models, and a command.

The only module that imports core, and only core's plugin host imports it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer_core import hookimpl
from deepinfer_core.plugin_api import (
    AnswerText,
    CommandSpec,
    PluginInfo,
    ReasoningText,
    RecipeSpec,
    ReplyEvent,
    RgbImage,
    ToolCallArguments,
    ToolCallStart,
)

from ._version import __version__
from .conversation import BytesImageSource, DataUrlImageSource, ImageSource, UrlImageSource
from .forms import structured_form
from .images import ImageQuota, ImageResolver, OpenCvImagePreprocessor, ReqwestImageFetcher
from .images.preprocess import resize
from .images.types import PreprocessOptions
from .parsing import CallArguments, CallStart, ParserEvent, TextDelta
from .recipe import ARCHITECTURES, DeepseekRecipe, EncodedChat, ReplyParser

_SAMPLING_FIELDS = frozenset(
    {"stop", "max_tokens", "temperature", "top_p", "seed", "n", "logprobs", "top_logprobs"}
    | {"frequency_penalty", "presence_penalty", "stream"}
)
"""Fields of a Chat Completions request that an engine takes elsewhere."""


@hookimpl
def deepinfer_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(
        name="recipe", version=__version__, vendor="The DeepInfer authors", api=">=1.0,<2"
    )


@hookimpl
def deepinfer_recipes() -> list[RecipeSpec]:
    """List the recipes."""
    return [RecipeSpec("deepseek", "deepinfer_recipe.plugin:EngineRecipe", ARCHITECTURES)]


@hookimpl
def deepinfer_commands() -> list[CommandSpec]:
    """List the commands."""
    help_text = "Look at prompts and outputs of DeepSeek models: render, encode, parse."
    return [CommandSpec("recipe", "deepinfer_recipe.cli:app", help_text)]


@dataclass(frozen=True, slots=True)
class EngineChat:
    """An encoded chat with its images decoded."""

    encoded: EncodedChat
    images: list[RgbImage]
    token_ids: list[int]
    constraint: dict[str, Any] | None
    starts_in_reasoning: bool
    stop_token_ids: tuple[int, ...]


class EngineRecipe:
    """`DeepseekRecipe`, with answers as core's events and images as pixels. Thread-safe."""

    def __init__(self, architecture: str, tokenizer_json: str) -> None:
        self._recipe = DeepseekRecipe(architecture, tokenizer_json)
        self._architecture = architecture
        self._resolver = ImageResolver(ReqwestImageFetcher(), OpenCvImagePreprocessor())

    def encode(self, chat: dict[str, Any]) -> EngineChat:
        """Encode a Chat Completions request, as `DeepseekRecipe.encode`, and read its images.

        Blocks while images are fetched.

        Raises:
            ValueError: it is none, or it says how to sample.
            ConversionError, RuntimeError, TypeError: as `DeepseekRecipe.encode`.
            ImageError: an image cannot be used, or there are too many.
            ImportError: there are images, and Pillow is missing.
        """
        misplaced = sorted(_SAMPLING_FIELDS & chat.keys())
        if misplaced:
            raise ValueError(f"{', '.join(misplaced)}: give this as sampling parameters")
        encoded = self._recipe.encode(chat)
        form: dict[str, Any] | None = None
        if encoded.constraint is not None:
            conversation = encoded.request.conversation
            form = structured_form(encoded.constraint, conversation, self._architecture)
        return EngineChat(
            encoded,
            self._read(encoded.images),
            encoded.token_ids,
            form,
            encoded.starts_in_reasoning,
            encoded.stop_token_ids,
        )

    def read_image(self, source: str | bytes) -> RgbImage:
        """Read one image, given as a URL or as the content of a file.

        Raises:
            ImageError, ImportError: as `encode`.
        """
        if isinstance(source, bytes):
            return self._read([BytesImageSource(source)])[0]
        kind = DataUrlImageSource if source.startswith("data:") else UrlImageSource
        return self._read([kind(source)])[0]

    def parser(self, chat: EngineChat) -> EngineParser:
        """Return a parser for one answer."""
        return EngineParser(self._recipe.parser(chat.encoded), chat.encoded)

    def _read(self, sources: Sequence[ImageSource]) -> list[RgbImage]:
        try:
            return self._resolver.each(sources, ImageQuota(), _to_rgb)
        except ImportError as error:
            raise ImportError(
                "images need Pillow; pip install 'deepinfer-recipe[images]'"
            ) from error


def _to_rgb(data: bytes, options: PreprocessOptions) -> RgbImage:
    image = resize(data, options).convert("RGB")
    return RgbImage(*image.size, image.tobytes())


class EngineParser:
    """Turns output ids into core's events, in any chunking."""

    def __init__(self, parser: ReplyParser, encoded: EncodedChat) -> None:
        self._parser = parser
        self._call_ids = _CallIds(
            encoded.token_ids, thinking_mode=encoded.request.conversation.thinking_mode
        )

    def feed(self, token_ids: Sequence[int]) -> list[ReplyEvent]:
        """Take more ids and return the events that are certain."""
        return self._translate(self._parser.feed(token_ids))

    def finish(self) -> list[ReplyEvent]:
        """End the output and return the remaining events."""
        return self._translate(self._parser.finish())

    def _translate(self, events: Iterable[ParserEvent]) -> list[ReplyEvent]:
        translated: list[ReplyEvent] = []
        for event in events:
            match event:
                case TextDelta(text, is_reasoning):
                    if text:
                        self._call_ids.see(text, is_reasoning=is_reasoning)
                        translated.append(ReasoningText(text) if is_reasoning else AnswerText(text))
                case CallStart(index, name):
                    translated.append(ToolCallStart(self._call_ids.new(index, name), name))
                case CallArguments(json_text):
                    self._call_ids.see(json_text)
                    translated.append(ToolCallArguments(json_text))
        return translated


class _CallIds:
    """Ids that look like those of the API but follow from the prompt and the answer before them.

    So they are new in a conversation, and a batch that runs twice gives the same bytes.
    """

    def __init__(self, prompt_token_ids: Sequence[int], *, thinking_mode: bool) -> None:
        self._seen = hashlib.blake2b(array("q", prompt_token_ids).tobytes(), digest_size=12)
        self._lacks_reasoning = thinking_mode

    def see(self, text: str, *, is_reasoning: bool = False) -> None:
        self._seen.update(text.encode(errors="replace"))
        if is_reasoning:
            self._lacks_reasoning = False

    def new(self, index: int, name: str) -> str:
        self.see(name)
        # The API marks calls that no reasoning led to.
        mark = "ET_" if self._lacks_reasoning else ""
        return f"call_{index:02}_{mark}{self._seen.hexdigest()}"
