"""`FakeRecipe`: the recipe of a made-up markup, for tests of what stands between a recipe and a
person.

An answer such as `(why)so[f:{"a": 1}]` thinks "why", says "so" and calls the tool `f`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tokenizers

from deepinfer_core.plugin_api.markers import hookimpl
from deepinfer_core.plugin_api.recipe import (
    AnswerText,
    ReasoningText,
    ReplyEvent,
    ToolCallArguments,
    ToolCallStart,
)
from deepinfer_core.plugin_api.records import PluginInfo, RecipeSpec
from deepinfer_core.text.detokenizer import IncrementalDetokenizer
from deepinfer_core.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class FakeChat:
    """A conversation in the made-up format: its JSON."""

    token_ids: list[int]
    images: tuple[object, ...] = ()
    constraint: object | None = None
    starts_in_reasoning: bool = False
    stop_token_ids: tuple[int, ...] = ()


@dataclass
class FakeRecipe:
    """Encodes conversations as JSON.

    Raises:
        ValueError: in `encode`, of a chat whose field `refuse` gives the reason.
    """

    architecture: str
    tokenizer_json: str
    tokenizer: Tokenizer = field(init=False)

    def __post_init__(self) -> None:
        self.tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(self.tokenizer_json))

    def encode(self, chat: dict[str, Any]) -> FakeChat:
        if "refuse" in chat:
            raise ValueError(chat["refuse"])
        text = json.dumps(chat["messages"], ensure_ascii=False)
        return FakeChat(
            self.tokenizer.encode(text, add_special_tokens=False),
            images=tuple(chat.get("images", ())),
            constraint=chat.get("response_format"),
        )

    def parser(self, encoded: FakeChat) -> FakeParser:
        return FakeParser(self.tokenizer)


class FakeParser:
    """Reads the made-up markup.

    Raises:
        ValueError: at a "#", which the markup has no use for.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._state = "answer"
        self._name = ""
        self._num_calls = 0

    def feed(self, token_ids: Sequence[int]) -> list[ReplyEvent]:
        return self._read(self._detokenizer.feed(token_ids))

    def finish(self) -> list[ReplyEvent]:
        return self._read(self._detokenizer.finish())

    def _read(self, text: str) -> list[ReplyEvent]:
        events = [self._take(character) for character in text]
        return [event for event in events if event is not None]

    def _take(self, character: str) -> ReplyEvent | None:
        if character == "#":
            raise ValueError("there is no # in answers")
        match self._state, character:
            case ("answer", "(") | ("reasoning", ")") | ("answer", "[") | ("arguments", "]"):
                self._state = {"(": "reasoning", "[": "name"}.get(character, "answer")
            case ("answer", _):
                return AnswerText(character)
            case ("reasoning", _):
                return ReasoningText(character)
            case ("arguments", _):
                return ToolCallArguments(character)
            case (_, ":"):
                self._state, name, self._name = "arguments", self._name, ""
                self._num_calls += 1
                return ToolCallStart(f"call_{self._num_calls - 1}", name)
            case _:
                self._name += character
        return None


class FakeRecipePlugin:
    """Brings `FakeRecipe` for `FakeEngine`, to be registered with a host.

    Args:
        architecture: that it serves.
    """

    def __init__(self, architecture: str = "FakeForCausalLM") -> None:
        self.architecture = architecture

    @hookimpl
    def deepinfer_plugin_info(self) -> PluginInfo:
        return PluginInfo("fake", "1.0", "The DeepInfer authors", api=">=1.0,<2")

    @hookimpl
    def deepinfer_recipes(self) -> list[RecipeSpec]:
        return [RecipeSpec("fake", f"{__name__}:FakeRecipe", (self.architecture,))]
