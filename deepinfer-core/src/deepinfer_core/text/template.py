"""`ChatTemplate`: a conversation becomes the prompt text that a model was trained on.

Owns the sandbox in which a checkpoint's jinja2 source runs. Knows no tokenizer: text comes out,
with special tokens spelled in it, to be encoded with `add_special_tokens=False`.
INVARIANT: templates come from strangers. They see plain data only, and whatever they raise ends
one request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes

from deepinfer_core.errors import ConfigError, RequestError
from deepinfer_core.text.template_sandbox import make_environment

_DEFAULT, _TOOL_USE = "default", "tool_use"
_MAX_DEPTH = 100
"""Of messages and tools; a list that holds itself would never end."""
_CONTINUE_MARK = "\ue0c0continue\ue0c1"
"""Private-use characters, which no conversation holds by chance; removed from the result."""


class ChatTemplate:
    """One or several named templates of a model. Thread-safe.

    Args:
        sources: jinja2 source, or name to source with the usual one named `default` and one for
            requests with tools, if it is another, named `tool_use`.
        special_tokens: role to content, such as `{"bos_token": "<s>"}`; variables of the template.
    """

    def __init__(
        self, sources: str | Mapping[str, str], *, special_tokens: Mapping[str, str] | None = None
    ) -> None:
        named = {_DEFAULT: sources} if isinstance(sources, str) else dict(sources)
        self._templates = {name: _NamedTemplate(name, source) for name, source in named.items()}
        self._special_tokens = dict(special_tokens or {})

    @property
    def names(self) -> tuple[str, ...]:
        """Of the templates, sorted."""
        return tuple(sorted(self._templates))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_name: str | None = None,
        **variables: Any,
    ) -> str:
        """Render a conversation.

        Args:
            messages: each with `role` and, as a rule, `content`: text or a list of text parts.
            tools: JSON schemas of functions.
            add_generation_prompt: end with what begins the model's own turn.
            continue_final_message: end inside the last message, so that the model goes on with
                it; excludes `add_generation_prompt`, which is then taken as False.
            template_name: one of `names`; default: `tool_use` for tools if there is one.
            variables: whatever else the template knows, such as `enable_thinking`.

        Raises:
            RequestError: the conversation is malformed, the template takes no tools, or it
                refused; then the message holds its words.
        """
        chosen = self._choose(template_name, has_tools=bool(tools))
        chat = _checked_messages(messages)
        if "messages" in variables:
            raise RequestError("a template variable cannot be named messages", field="messages")
        if tools and "tools" not in chosen.variables:
            raise RequestError(
                f"this model's chat template {chosen.name!r} takes no tools; leave them out or "
                "describe them in a message",
                field="tools",
            )
        if not chosen.wants_content_parts:
            chat = [_with_flat_content(message) for message in chat]
        if continue_final_message:
            _mark_final_message(chat)
        text = chosen.render(
            {
                **self._special_tokens,
                **_plain(variables, "chat_template_kwargs"),
                "messages": chat,
                "tools": _checked_tools(tools),
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            }
        )
        return _cut_at_mark(text) if continue_final_message else text

    def _choose(self, name: str | None, *, has_tools: bool) -> _NamedTemplate:
        if name is None:
            name = _TOOL_USE if has_tools and _TOOL_USE in self._templates else _DEFAULT
        if name not in self._templates:
            raise RequestError(
                f"there is no chat template named {name!r}; this model has "
                f"{', '.join(map(repr, self.names)) or 'none'}",
                field="template_name",
            )
        return self._templates[name]


def load_template_file(path: str | Path, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """Read the jinja2 file that replaces a model's own templates.

    Raises:
        ConfigError: it cannot be read or is no jinja2.
    """
    try:
        source = Path(path).read_text(encoding="utf-8")
        make_environment().parse(source)
    except (OSError, UnicodeDecodeError, jinja2.TemplateSyntaxError) as error:
        line = f" in line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise ConfigError(
            f"the chat template cannot be used{line}: {error}",
            field="model.chat_template",
            value=str(path),
            allowed="a readable jinja2 file",
        ) from error
    return ChatTemplate(source, special_tokens=special_tokens)


class _NamedTemplate:
    """One source. Compiled when first used, so that a broken one costs only who uses it."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self._source = source

    @cached_property
    def _compiled(self) -> tuple[jinja2.Template, nodes.Template]:
        environment = make_environment()
        try:
            return environment.from_string(self._source), environment.parse(self._source)
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(
                f"the chat template {self.name!r} is no valid jinja2, line {error.lineno}: "
                f"{error}; give another as `chat_template`"
            ) from error

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names that the source reads without setting them."""
        return frozenset(meta.find_undeclared_variables(self._compiled[1]))

    @cached_property
    def wants_content_parts(self) -> bool:
        """Whether the source walks over a message's content, and so expects a list of parts."""
        return any(_is_content(loop.iter) for loop in self._compiled[1].find_all(nodes.For))

    def render(self, variables: Mapping[str, Any]) -> str:
        try:
            return self._compiled[0].render(variables)
        except RequestError:
            raise
        except Exception as error:  # a stranger's code: anything may come, and it ends one request
            raise RequestError(f"the chat template refused: {error}", field="messages") from error


def _is_content(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name == "content"


def _checked_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages must be a list of at least one message", field="messages")
    chat = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(
                f"{where} must be an object with a 'role' such as 'user'", field="messages"
            )
        # Clients write `tool_calls: null` for absent; templates ask only whether it is there.
        chat.append(
            {
                key: _plain(value, f"{where}.{key}")
                for key, value in message.items()
                if value is not None or key == "content"
            }
        )
        _check_content(chat[-1].get("content"), f"{where}.content")
    return chat


def _check_content(content: object, where: str) -> None:
    if content is None or isinstance(content, str):
        return
    parts = content if isinstance(content, list) else [content]
    for index, part in enumerate(parts):
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise RequestError(
                f"{where}[{index}] is {kind!r}; without a recipe for the model only text is "
                'supported: a string or a list of {"type": "text", "text": ...}; '
                "deepinfer-recipe[images] reads images for models that take them",
                field="messages",
            )
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a string or a list of parts", field="messages")


def _with_flat_content(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}


def _checked_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Any] | None:
    if not tools:
        return None
    if isinstance(tools, (str, Mapping)) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestError("tools must be a list of JSON schemas", field="tools")
    return [_plain(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """Copy JSON data, so that a template cannot reach methods of anything else."""
    field = where.split("[")[0].split(".")[0]
    if depth > _MAX_DEPTH:
        raise RequestError(f"{field} is nested deeper than {_MAX_DEPTH} levels", field=field)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    raise RequestError(f"{where} must be JSON data, not {type(value).__name__}", field=field)


def _mark_final_message(chat: list[dict[str, Any]]) -> None:
    content = chat[-1].get("content")
    if isinstance(content, str):
        chat[-1] = {**chat[-1], "content": content + _CONTINUE_MARK}
    elif isinstance(content, list) and content:
        last = {**content[-1], "text": content[-1]["text"] + _CONTINUE_MARK}
        chat[-1] = {**chat[-1], "content": [*content[:-1], last]}
    else:
        raise RequestError("the last message has no content to continue", field="messages")


def _cut_at_mark(text: str) -> str:
    before, mark, after = text.partition(_CONTINUE_MARK)
    if not mark or _CONTINUE_MARK in after:
        raise RequestError(
            "this model's chat template does not write the last message once, as it is, so it "
            "cannot be continued",
            field="continue_final_message",
        )
    return before
