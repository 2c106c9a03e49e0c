"""Tools of the Responses protocol: their fields, their names to the model, their echo."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..conversation import ToolDefinition
from ..replies.responses_items import ClientTool
from . import apply_patch
from .body import (
    optional,
    read_any,
    read_bool,
    read_list,
    read_map,
    read_name,
    read_str,
    read_tag,
    required,
)
from .errors import bad_request
from .options import ConversionOptions, ModelVersion, WebSearchBehavior
from .tools import check_name

TOOL_SEARCH = "tool_search"
SERVER_TOOLS = "Server tools are not supported"
_WEB_SEARCH = ("web_search", "web_search_2025_08_26")
read_execution = read_name("client", "server")
_LOCATION = ("city", "country", "region", "timezone")


@dataclass(slots=True)
class DeclaredTools:
    """Tools as the model will see them."""

    definitions: list[ToolDefinition] = field(default_factory=list)
    given_parameters: list[int] = field(default_factory=list)
    """Indices of the tools whose parameters the request gives."""
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Namespace and own name of each namespaced tool."""
    client_tools: dict[str, ClientTool] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    """Names that no other tool can have."""
    _last_numbers: dict[str, int] = field(default_factory=dict)

    def add(self, definition: ToolDefinition, *, is_given: bool) -> None:
        """Append a definition."""
        if is_given:
            self.given_parameters.append(len(self.definitions))
        self.definitions.append(definition)
        self.taken.add(definition.name)

    def free_name(self, name: str) -> str:
        """Return the name, with the first number behind it that makes it unlike all others."""
        number = self._last_numbers.get(name, 0)
        candidate = f"{name}_{number}" if number else name
        while candidate in self.taken:
            number += 1
            candidate = f"{name}_{number}"
        self._last_numbers[name] = number
        return candidate


def read_responses_tool(value: Any) -> dict[str, Any]:
    """Read a tool. The result is what responses repeat; a type that is not known has no more."""
    fields = read_map(value, "internally tagged enum ResponsesTool")
    kind = required(fields, "type", read_any)
    if not isinstance(kind, str):
        read_tag(fields, "ResponsesTool", ())
    match kind:
        case "function" | "custom":
            return _read_callable(fields, ("function", "custom"))
        case "namespace":
            names = ("function", "custom")
            tools = required(fields, "tools", read_list(lambda item: _read_callable(item, names)))
            return {
                "type": kind,
                "name": required(fields, "name", read_str),
                "description": optional(fields, "description", read_str),
                "tools": tools,
            }
        case "tool_search":
            return {
                "type": kind,
                "execution": optional(fields, "execution", read_execution),
                "description": optional(fields, "description", read_str),
                "parameters": fields.get("parameters"),
            }
        case "web_search" | "web_search_2025_08_26":
            location = optional(fields, "user_location", _read_location)
            size = optional(fields, "search_context_size", read_name("low", "medium", "high"))
            return {"type": kind, "search_context_size": size, "user_location": location}
    return {"type": "unsupported"}


def echo_tools(tools: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools as responses repeat them."""
    return [tool for tool in tools if tool["type"] != "unsupported"]


def flatten_namespaces(tools: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the tools with those of namespaces on their own, as search results show them."""
    for tool in echo_tools(tools):
        if tool["type"] != "namespace":
            yield tool
            continue
        namespace = {"name": tool["name"], "description": tool["description"] or ""}
        for member in tool["tools"]:
            yield member | {"namespace": namespace}


def declare_tools(
    tools: Sequence[dict[str, Any]],
    version: ModelVersion,
    options: ConversionOptions,
    declared: DeclaredTools,
    path: str = "",
) -> None:
    """Append the definitions of tools to `declared`.

    Raises:
        ConversionError: a name or a kind of tool is not accepted.
    """
    declared.taken.update(tool["name"] for tool in tools if tool["type"] == "function")
    for index, tool in enumerate(tools):
        place = f"{path}tools[{index}]"
        match tool["type"]:
            case "function":
                check_name(f"{place}.name", tool["name"])
                _declare_function(declared, tool, tool["name"], tool["description"])
            case "namespace":
                _declare_namespace(declared, tool, version, place)
            case "custom":
                if tool["name"] != apply_patch.NAME:
                    raise bad_request(
                        f"Unsupported custom tool: '{tool['name']}'. Only 'apply_patch' is "
                        "supported."
                    )
                declared.add(apply_patch.apply_patch_tool(version), is_given=True)
                declared.client_tools[apply_patch.NAME] = "custom"
            case "tool_search":
                if tool["execution"] != "client":
                    continue
                declared.client_tools[TOOL_SEARCH] = "tool_search"
                if version is ModelVersion.DeepseekV41Flash:
                    _declare_function(declared, tool, TOOL_SEARCH, tool["description"])
            case "web_search" | "web_search_2025_08_26":
                if options.responses_web_search is WebSearchBehavior.Reject:
                    raise bad_request(SERVER_TOOLS)


def _declare_namespace(
    declared: DeclaredTools,
    namespace: dict[str, Any],
    version: ModelVersion,
    place: str,
) -> None:
    check_name(f"{place}.name", namespace["name"])
    members: set[str] = set()
    for index, tool in enumerate(namespace["tools"]):
        if tool["type"] == "custom":
            raise bad_request(
                "Currently custom tools are not allowed inside a namespace. Found custom tool "
                f"'{tool['name']}' in {place}.tools[{index}]."
            )
        check_name(f"{place}.tools[{index}].name", tool["name"])
        if tool["name"] in members:
            raise bad_request("Tool names within a namespace must be unique.")
        members.add(tool["name"])
        name = declared.free_name(qualified_name(namespace["name"], tool["name"], version))
        declared.namespaces[name] = (namespace["name"], tool["name"])
        description = tool["description"]
        if namespace["description"] and version is ModelVersion.DeepseekV41Flash:
            description = f"{namespace['description']}\n{description or ''}"
        _declare_function(declared, tool, name, description)


def qualified_name(namespace: str, name: str, version: ModelVersion) -> str:
    """Return the name of a namespaced tool to a model version."""
    return namespace + ("::" if version is ModelVersion.DeepseekV41Flash else "__") + name


def _declare_function(
    declared: DeclaredTools, tool: dict[str, Any], name: str, description: str | None
) -> None:
    parameters = tool["parameters"]
    definition = ToolDefinition(name, description, parameters, tool.get("strict"))
    declared.add(definition, is_given=parameters is not None)


def _read_callable(value: Any, names: Sequence[str]) -> dict[str, Any]:
    fields = read_tag(value, "ResponsesNamespaceTool", names)
    name = required(fields, "name", read_str)
    if fields["type"] == "custom":
        return {"type": "custom", "name": name}
    return {
        "type": "function",
        "name": name,
        "description": optional(fields, "description", read_str),
        "parameters": fields.get("parameters"),
        "strict": optional(fields, "strict", read_bool),
    }


def _read_location(value: Any) -> dict[str, Any]:
    fields = read_map(value, "struct UserLocation")
    return {name: optional(fields, name, read_str) for name in _LOCATION}
