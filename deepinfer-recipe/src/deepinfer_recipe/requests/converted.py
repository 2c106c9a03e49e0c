"""What a request becomes: a conversation, and what inference and parsing need to know."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..arguments import check_instance
from ..conversation import Conversation
from ..parsing import ParsingOptions
from ..replies.responses_items import ClientTool
from .errors import bad_request
from .options import ModelVersion


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """A constraint that constrained decoding can enforce on the output."""

    kind: str
    """`json`, `regex`, `tool_call` or `tool_call_required`."""
    schema: str
    """Compact JSON of the schema or of the tools, the regular expression, or "" for any JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceOptions:
    """Parameters of inference. None where the request says nothing and no rule fills it in."""

    max_tokens: int | None = None
    """`ConversationRequest.resolve_max_tokens` has the default, once the prompt is encoded."""
    temperature: float | None = None
    top_p: float | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    """Most likely alternatives to report per token, 0 to 20."""
    seed: int | None = None
    """In [0, 2^63)."""
    output_constraint: OutputConstraint | None = None


@dataclass(frozen=True, slots=True)
class ConversationRequest:
    """A converted request. Built directly, it has default options."""

    conversation: Conversation
    model_version: ModelVersion
    inference_options: InferenceOptions = field(default_factory=InferenceOptions, kw_only=True)
    parsing_options: ParsingOptions = field(default_factory=ParsingOptions, kw_only=True)
    stream: bool = field(default=False, kw_only=True)
    """Whether the request asks for a streamed response."""
    include_usage: bool = field(default=False, kw_only=True)
    """Whether a streamed response repeats the usage field in every chunk."""
    client_tools: dict[str, ClientTool] = field(default_factory=dict, kw_only=True)
    """Tools whose calls the Responses protocol reports as items of their own kind."""

    def __post_init__(self) -> None:
        check_instance("conversation", self.conversation, Conversation)
        check_instance("model_version", self.model_version, ModelVersion)

    def resolve_max_tokens(self, prompt_tokens: int, context_limit: int) -> int:
        """Return the `max_tokens` to send to the backend.

        A requested value is kept. Otherwise it is 8192 outside thinking mode, 131072 in thinking
        mode with effort `max` and 65536 with any other, lowered to what the context has left and
        raised to at least 1.

        Args:
            prompt_tokens: tokens of the prompt, each image counted in full.
            context_limit: tokens that the model's context holds.

        Raises:
            ConversionError: the prompt and the requested tokens exceed the context.
        """
        requested = self.inference_options.max_tokens
        total = prompt_tokens + (requested or 0)
        if total > context_limit:
            raise bad_request(
                f"This model's maximum context length is {context_limit} tokens. However, you "
                f"requested {total} tokens ({prompt_tokens} in the messages, {requested or 0} in "
                "the completion). Please reduce the length of the messages or completion."
            )
        if requested is not None:
            return requested
        default = 8192
        if self.conversation.thinking_mode:
            default = 131072 if self.conversation.reasoning_effort == "max" else 65536
        return max(1, min(default, context_limit - prompt_tokens))
