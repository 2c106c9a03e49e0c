"""What an answer must look like, in the terms of an engine that can hold it to that.

`structured_form` gives the fields of core's `structured` parameter. Calls of tools become a tree of
texts, tokens, values and free text (`markup`). Knows the markup of calls, and no engine.
"""

from __future__ import annotations

import json
from typing import Any

from .conversation import Conversation, ToolDefinition
from .prompts import v4, v32, v41
from .prompts.dsml import Dialect
from .requests.converted import OutputConstraint
from .specials import SpecialToken

_DIALECTS = {
    "DeepseekV32ForCausalLM": v32.DIALECT,
    "DeepseekV4ForCausalLM": v4.DIALECT,
    "DeepseekV41ForCausalLM": v41.DIALECT,
}
_NAME = '[^"<> \\n]{1,128}'


def structured_form(
    constraint: OutputConstraint, conversation: Conversation, architecture: str
) -> dict[str, Any]:
    """The form of a constraint.

    Args:
        architecture: of the model, which writes calls in a dialect of its own.
    """
    match constraint.kind:
        case "json":
            if not constraint.schema:
                return {"json_object": True}
            return {"json_schema": json.loads(constraint.schema)}
        case "regex":
            return {"regex": constraint.schema}
    dialect = _DIALECTS[architecture]
    markup = _Markup(dialect, SpecialToken.Dsml.value)
    calls = markup.calls(conversation.tools)
    if constraint.kind == "tool_call_required":  # the prompt has opened the block
        return {"markup": calls}
    block = {"all": [*markup.tag("\n\n<{}" + dialect.block + ">\n"), calls]}
    return {"markup": {"all": [{"free": True}, {"times": [block, 0, 1]}]}}


class _Markup:
    """Writes the tree of calls in one dialect."""

    def __init__(self, dialect: Dialect, dsml: str) -> None:
        self._dialect, self._dsml = dialect, dsml

    def tag(self, text: str) -> list[dict[str, Any]]:
        """A text with the token where `{}` stands."""
        before, _, after = text.partition("{}")
        return [{"text": before}, {"token": self._dsml}, {"text": after}]

    def calls(self, tools: list[ToolDefinition]) -> dict[str, Any]:
        """One call or more, and the end of their block."""
        call = {"any": [self._call(tool) for tool in tools]}
        end = self.tag(f"</{{}}{self._dialect.block}>")
        return {"all": [{"times": [call, 1, None]}, *end]}

    def _call(self, tool: ToolDefinition) -> dict[str, Any]:
        prefix = self._dialect.tag_prefix
        parameters = self._strict(tool) if tool.strict else self._any_parameters()
        return {
            "all": [
                *self.tag(f'<{{}}{prefix}invoke name="{tool.name}">\n'),
                *parameters,
                *self.tag(f"</{{}}{prefix}invoke>\n"),
            ]
        }

    def _strict(self, tool: ToolDefinition) -> list[dict[str, Any]]:
        """Every parameter in its order, with values that are valid."""
        schema = tool.parameters
        definitions = {k: schema[k] for k in ("$defs", "definitions") if k in schema}
        lines = [
            self._parameter([{"text": name}], {**definitions, **inner})
            for name, inner in schema.get("properties", {}).items()
        ]
        return lines or self._empty()

    def _any_parameters(self) -> list[dict[str, Any]]:
        line = self._parameter([{"regex": _NAME}], {})
        if not self._dialect.empty_body:
            return [{"times": [line, 0, None]}]
        return [{"any": [{"times": [line, 1, None]}, *self._empty()]}]

    def _empty(self) -> list[dict[str, Any]]:
        return [{"text": self._dialect.empty_body}] if self._dialect.empty_body else []

    def _parameter(self, name: list[dict[str, Any]], schema: Any) -> dict[str, Any]:
        """Strings as they are, other values as JSON."""
        prefix = self._dialect.tag_prefix
        string = [{"text": '" string="true">'}, {"string": schema}]
        other = [{"text": '" string="false">'}, {"no_string": schema}]
        return {
            "all": [
                *self.tag(f'<{{}}{prefix}parameter name="'),
                *name,
                {"any": [{"all": string}, {"all": other}]},
                *self.tag(f"</{{}}{prefix}parameter>\n"),
            ]
        }
