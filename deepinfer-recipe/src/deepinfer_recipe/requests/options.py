"""Options of request conversion: everything that a server decides and a request doesn't."""

from __future__ import annotations

import copy
from enum import Enum
from typing import Any, Self

from ..arguments import check_bool, check_instance, check_str, check_uint
from ..specials import SpecialTokens


class ModelVersion(Enum):
    """The model version that a conversation is for; it selects the prompt format."""

    DeepseekV4Pro = "DeepseekV4Pro"
    DeepseekV41Flash = "DeepseekV41Flash"


class ReasoningContentBehavior(Enum):
    """What to do in thinking mode with assistant history whose reasoning is missing."""

    FillEmpty = "FillEmpty"
    Reject = "Reject"


class WebSearchBehavior(Enum):
    """What to do with web-search declarations, choices and blocks."""

    Drop = "Drop"
    Reject = "Reject"


MAX_TOKENS_UPPER_BOUND = 393216
DEFAULT_MODELS = {
    "DeepSeek-V4-Pro": ModelVersion.DeepseekV4Pro,
    "DeepSeek-V4.1-Flash": ModelVersion.DeepseekV41Flash,
}


class ConversionOptions:
    """Options of request conversion; immutable, the `with_` methods return changed copies."""

    def __init__(
        self,
        *,
        default_thinking_mode: bool = True,
        reasoning_content_behavior: ReasoningContentBehavior = ReasoningContentBehavior.FillEmpty,
        responses_web_search: WebSearchBehavior = WebSearchBehavior.Drop,
        messages_web_search: WebSearchBehavior = WebSearchBehavior.Reject,
        thinking_max_tokens_upper_bound: int = MAX_TOKENS_UPPER_BOUND,
        non_thinking_max_tokens_upper_bound: int = MAX_TOKENS_UPPER_BOUND,
    ) -> None:
        self._values: dict[str, Any] = {
            "default_thinking_mode": check_bool("default_thinking_mode", default_thinking_mode),
            "reasoning_content_behavior": check_instance(
                "reasoning_content_behavior", reasoning_content_behavior, ReasoningContentBehavior
            ),
            "responses_web_search": check_instance(
                "responses_web_search", responses_web_search, WebSearchBehavior
            ),
            "messages_web_search": check_instance(
                "messages_web_search", messages_web_search, WebSearchBehavior
            ),
            "thinking_max_tokens_upper_bound": check_uint(
                "thinking_max_tokens_upper_bound", thinking_max_tokens_upper_bound
            ),
            "non_thinking_max_tokens_upper_bound": check_uint(
                "non_thinking_max_tokens_upper_bound", non_thinking_max_tokens_upper_bound
            ),
            "special_tokens": SpecialTokens(),
            "model_versions_by_name": dict(DEFAULT_MODELS),
        }

    @property
    def default_thinking_mode(self) -> bool:
        """Whether requests that don't say so use thinking mode."""
        return bool(self._values["default_thinking_mode"])

    @property
    def model_versions_by_name(self) -> dict[str, ModelVersion]:
        """The model version of each accepted model name."""
        return dict(self._values["model_versions_by_name"])

    @property
    def thinking_max_tokens_upper_bound(self) -> int:
        """The largest `max_tokens` in thinking mode; Messages lowers a larger one to it."""
        return int(self._values["thinking_max_tokens_upper_bound"])

    @property
    def non_thinking_max_tokens_upper_bound(self) -> int:
        """The largest `max_tokens` outside thinking mode; Messages lowers a larger one to it."""
        return int(self._values["non_thinking_max_tokens_upper_bound"])

    @property
    def reasoning_content_behavior(self) -> ReasoningContentBehavior:
        """What to do when reasoning of the history is missing."""
        value: ReasoningContentBehavior = self._values["reasoning_content_behavior"]
        return value

    @property
    def responses_web_search(self) -> WebSearchBehavior:
        """What to do with web search in Responses."""
        value: WebSearchBehavior = self._values["responses_web_search"]
        return value

    @property
    def messages_web_search(self) -> WebSearchBehavior:
        """What to do with web search in Messages."""
        value: WebSearchBehavior = self._values["messages_web_search"]
        return value

    @property
    def special_tokens(self) -> SpecialTokens:
        """Spellings of the special tokens."""
        value: SpecialTokens = self._values["special_tokens"]
        return value

    def with_default_thinking_mode(self, default_thinking_mode: bool) -> Self:
        """Return options with another default mode."""
        return self._with(
            default_thinking_mode=check_bool("default_thinking_mode", default_thinking_mode)
        )

    def with_reasoning_content_behavior(
        self, reasoning_content_behavior: ReasoningContentBehavior
    ) -> Self:
        """Return options with another treatment of missing reasoning."""
        return self._with(
            reasoning_content_behavior=check_instance(
                "reasoning_content_behavior", reasoning_content_behavior, ReasoningContentBehavior
            )
        )

    def with_responses_web_search(self, responses_web_search: WebSearchBehavior) -> Self:
        """Return options with another treatment of web search in Responses."""
        return self._with(
            responses_web_search=check_instance(
                "responses_web_search", responses_web_search, WebSearchBehavior
            )
        )

    def with_messages_web_search(self, messages_web_search: WebSearchBehavior) -> Self:
        """Return options with another treatment of web search in Messages."""
        return self._with(
            messages_web_search=check_instance(
                "messages_web_search", messages_web_search, WebSearchBehavior
            )
        )

    def with_special_tokens(self, special_tokens: SpecialTokens) -> Self:
        """Return options with other spellings."""
        return self._with(
            special_tokens=check_instance("special_tokens", special_tokens, SpecialTokens)
        )

    def with_model_alias(self, model: str, model_version: ModelVersion) -> Self:
        """Return options that accept one more name, or give a name another version."""
        models = self.model_versions_by_name
        models[check_str("model", model)] = check_instance(
            "model_version", model_version, ModelVersion
        )
        return self._with(model_versions_by_name=models)

    def with_model_versions_by_name(self, model_versions_by_name: dict[str, ModelVersion]) -> Self:
        """Return options that accept exactly these names."""
        models = {
            check_str("model", name): check_instance("model_version", version, ModelVersion)
            for name, version in model_versions_by_name.items()
        }
        return self._with(model_versions_by_name=models)

    def with_thinking_max_tokens_upper_bound(self, thinking_max_tokens_upper_bound: int) -> Self:
        """Return options with another bound in thinking mode."""
        return self._with(
            thinking_max_tokens_upper_bound=check_uint(
                "thinking_max_tokens_upper_bound", thinking_max_tokens_upper_bound
            )
        )

    def with_non_thinking_max_tokens_upper_bound(
        self, non_thinking_max_tokens_upper_bound: int
    ) -> Self:
        """Return options with another bound outside thinking mode."""
        return self._with(
            non_thinking_max_tokens_upper_bound=check_uint(
                "non_thinking_max_tokens_upper_bound", non_thinking_max_tokens_upper_bound
            )
        )

    def _with(self, **values: Any) -> Self:
        options = copy.copy(self)
        options._values = self._values | values
        return options
