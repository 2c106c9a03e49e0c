"""DSML, the markup in which the models declare and call tools.

One `Dialect` per model version. Knows nothing of roles and turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..conversation import ToolCall, ToolDefinition
from ..jsontext import JsonTextError, loads
from .pieces import PromptWriter, Template, compile_template

_TOOLS_HEAD = """\
## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<{dsml}BLOCK>" block like the following:

<{dsml}BLOCK>
<{dsml}_invoke name="$TOOL_NAME">
<{dsml}_parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{dsml}_parameter>
...
</{dsml}_invoke>
<{dsml}_invoke name="$TOOL_NAME2">
...
</{dsml}_invoke>
</{dsml}BLOCK>

String parameters should be specified as is and set `string="true"`. For all other types \
(numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {thinking_start}), you MUST output your complete \
reasoning inside {thinking_start}...{thinking_end} BEFORE any tool calls or final response.

Otherwise, output directly after {thinking_end} with tool calls or final response.

### Available Tool Schemas

"""
_TOOLS_TAIL = """
You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one model version spells DSML."""

    block: str
    """Name of the block that holds the calls."""
    tag_prefix: str
    """What stands between the DSML token and a tag name."""
    empty_body: str
    """Body of a call without parameters."""
    empty_list: str
    """What stands for the list of tools when there is no line to show."""
    dumps: Callable[[Any], str]
    """Writer of JSON text."""

    @property
    def block_start(self) -> Template:
        """What opens a block of calls, with the blank line before it."""
        return compile_template(f"\n\n<{{dsml}}{self.block}>\n")

    @property
    def block_end(self) -> Template:
        """What closes a block of calls."""
        return compile_template(f"</{{dsml}}{self.block}>")

    @property
    def tools_head(self) -> Template:
        """Explanation of the markup, up to the list of tools."""
        text = _TOOLS_HEAD.replace("BLOCK", self.block).replace(
            "{dsml}_", "{dsml}" + self.tag_prefix
        )
        return compile_template(text)


def tool_line(dialect: Dialect, tool: ToolDefinition) -> str:
    """Write one tool as the JSON line that prompts list."""
    return dialect.dumps(
        {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": tool.parameters,
        }
    )


def write_tools(writer: PromptWriter, dialect: Dialect, tools: Iterable[ToolDefinition]) -> None:
    """Append the block that declares the tools; deferred ones are left out."""
    writer.template(dialect.tools_head)
    lines = [tool_line(dialect, tool) + "\n" for tool in tools if not tool.defer_loading]
    writer.text("".join(lines) if lines else dialect.empty_list)
    writer.text(_TOOLS_TAIL)


def write_calls(writer: PromptWriter, dialect: Dialect, calls: Sequence[ToolCall]) -> None:
    """Append the block of historical calls."""
    writer.template(dialect.block_start)
    prefix = dialect.tag_prefix
    invoke_end = compile_template(f"</{{dsml}}{prefix}invoke>\n")
    invoke_start = compile_template(f"<{{dsml}}{prefix}invoke name=")
    for call in calls:
        writer.template(invoke_start)
        writer.text(f'"{call.name}">\n')
        parameters = parse_arguments(call.arguments)
        write_parameters(writer, dialect, parameters)
        if not parameters:
            writer.text(dialect.empty_body)
        writer.template(invoke_end)
    writer.template(dialect.block_end)


def write_parameters(writer: PromptWriter, dialect: Dialect, parameters: dict[str, Any]) -> None:
    """Append one line per parameter: strings as they are, other values as JSON."""
    prefix = dialect.tag_prefix
    start = compile_template(f"<{{dsml}}{prefix}parameter name=")
    end = compile_template(f"</{{dsml}}{prefix}parameter>\n")
    for name, value in parameters.items():
        is_string = isinstance(value, str)
        writer.template(start)
        writer.text(f'"{name}" string="{"true" if is_string else "false"}">')
        writer.text(value if is_string else dialect.dumps(value))
        writer.template(end)


def call_order(calls: Iterable[ToolCall] | None) -> dict[str, int]:
    """Return the place of each call by its id; the first one if several have one id."""
    order: dict[str, int] = {}
    for index, call in enumerate(calls or ()):
        order.setdefault(call.id, index)
    return order


def parse_arguments(arguments: str) -> dict[str, Any]:
    """Return the parameters of a call; text that is no JSON object is one parameter `arguments`."""
    try:
        value = loads(arguments)
    except JsonTextError:
        return {"arguments": arguments}
    return value if isinstance(value, dict) else {"arguments": arguments}
