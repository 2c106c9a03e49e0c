"""What an engine sees: a chat request to token ids, and output ids to events.

Joins conversion, rendering and parsing for one checkpoint. Knows no engine; `plugin` offers it to
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .arguments import check_bool
from .conversation import ImageSource
from .parsing import Origin, OutputParser, ParserEvent, ParsingOptions, Piece, TextDelta
from .prompts import DeepseekV4Encoding, DeepseekV32Encoding, DeepseekV41Encoding
from .requests.chat import ChatCompletionRequest
from .requests.converted import ConversationRequest, OutputConstraint
from .requests.options import ConversionOptions, ModelVersion
from .specials import SpecialToken
from .streaming.decoding import TokenDecoder
from .tokenizer import Tokenizer

_ENCODINGS = {
    "DeepseekV32ForCausalLM": (DeepseekV32Encoding, ModelVersion.DeepseekV4Pro),
    "DeepseekV4ForCausalLM": (DeepseekV4Encoding, ModelVersion.DeepseekV4Pro),
    "DeepseekV41ForCausalLM": (DeepseekV41Encoding, ModelVersion.DeepseekV41Flash),
}
ARCHITECTURES = tuple(_ENCODINGS)
"""The model classes that a recipe serves."""


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """A chat request as an engine needs it."""

    token_ids: list[int]
    images: list[ImageSource]
    constraint: OutputConstraint | None
    """What the answer must look like; None where the request leaves that to the model."""
    starts_in_reasoning: bool
    stop_token_ids: tuple[int, ...]
    request: ConversationRequest
    promotes_reasoning: bool = False
    """Whether reasoning without an end or an answer counts as content."""


class ReplyParser:
    """Turns output ids into parser events, in any chunking. Stop tokens are left out."""

    def __init__(
        self,
        options: ParsingOptions,
        tokenizer: Tokenizer,
        *,
        stop_token_ids: Sequence[int] = (),
        promotes_reasoning: bool = False,
    ) -> None:
        self._decoder = TokenDecoder(tokenizer)
        self._parser = OutputParser(options)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._unanswered: list[str] | None = [] if promotes_reasoning else None

    def feed(self, token_ids: Sequence[int]) -> list[ParserEvent]:
        """Take more ids and return the events that are certain."""
        kept = [token_id for token_id in token_ids if token_id not in self._stop_token_ids]
        events: list[ParserEvent] = []
        for piece in self._decoder.feed(kept, None):
            if not self._parser.is_stopped:
                events += self._parser.feed(piece)
        self._note_reasoning(events)
        return events

    def finish(self) -> list[ParserEvent]:
        """End the output and return the remaining events.

        With `promotes_reasoning`, an output that never left its reasoning is repeated as content.
        """
        events: list[ParserEvent] = []
        rest = self._decoder.finish()
        if rest and not self._parser.is_stopped:
            events += self._parser.feed(Piece(rest, Origin.PLAIN))
        events += self._parser.finish()
        self._note_reasoning(events)
        if self._unanswered:
            events.append(TextDelta("".join(self._unanswered), is_reasoning=False))
        return events

    def _note_reasoning(self, events: list[ParserEvent]) -> None:
        for event in events:
            if self._unanswered is None:
                return
            if isinstance(event, TextDelta) and event.is_reasoning:
                self._unanswered.append(event.text)
            else:
                self._unanswered = None


class DeepseekRecipe:
    """The recipe of one checkpoint.

    Args:
        architecture: one of `ARCHITECTURES`.
        tokenizer_json: contents of the checkpoint's `tokenizer.json`.

    Raises:
        ValueError: the architecture is not known, or the tokenizer is none.
    """

    def __init__(self, architecture: str, tokenizer_json: str) -> None:
        if architecture not in _ENCODINGS:
            raise ValueError(f"no recipe for {architecture}; there are {', '.join(ARCHITECTURES)}")
        encoding, self._version = _ENCODINGS[architecture]
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._encoding = encoding().with_tokenizer(self._tokenizer)
        eos = self._tokenizer.added_id(SpecialToken.Eos.value)
        self._stop_token_ids = () if eos is None else (eos,)

    def encode(self, chat: Mapping[str, Any]) -> EncodedChat:
        """Encode a Chat Completions request.

        `model` is not needed. `continue_final_message` continues the last message, which must be
        an assistant's. `promotes_reasoning` is as in `parser`.

        Raises:
            ValueError: the request is none.
            ConversionError: the request breaks a rule of the protocol.
            RuntimeError: the tokenizer lacks a special token of the prompt.
        """
        body = {**chat, "model": str(chat.get("model", "model"))}
        promotes_reasoning = check_bool("promotes_reasoning", body.pop("promotes_reasoning", False))
        if body.pop("continue_final_message", False):
            messages = body.get("messages")
            if not isinstance(messages, list | tuple) or not messages:
                raise ValueError(
                    "continue_final_message continues the last message; messages is empty"
                )
            body["messages"] = [*messages[:-1], {**messages[-1], "prefix": True}]
        options = ConversionOptions().with_model_versions_by_name({body["model"]: self._version})
        request = ChatCompletionRequest(body).convert(options)
        rendered = self._encoding.render_conversation(request.conversation)
        stage = request.parsing_options.thinking_initial_stage
        return EncodedChat(
            self._encoding.encode_pieces(rendered.pieces),
            rendered.image_sources,
            _needed_constraint(request),
            stage is not None and stage.starts_in_reasoning(),
            self._stop_token_ids,
            request,
            promotes_reasoning,
        )

    def parser(self, encoded: EncodedChat, *, promotes_reasoning: bool = False) -> ReplyParser:
        """Return a parser for the answer to an encoded chat.

        Args:
            promotes_reasoning: whether reasoning without an end or an answer counts as content,
                whatever the chat says of that.
        """
        return ReplyParser(
            encoded.request.parsing_options,
            self._tokenizer,
            stop_token_ids=self._stop_token_ids,
            promotes_reasoning=promotes_reasoning or encoded.promotes_reasoning,
        )


def _needed_constraint(request: ConversationRequest) -> OutputConstraint | None:
    """Return the constraint that the request relies on; calls that the model is free to make, in
    the form that it likes, rely on none.
    """
    conversation = request.conversation
    is_free = conversation.tool_choice != "required" and not any(
        tool.strict for tool in conversation.tools
    )
    if conversation.shows_tools and is_free:
        return None
    return request.inference_options.output_constraint
