"""The command reference: what `deepinfer COMMAND --help` shows, command by command.

Reads the same objects that `--help` is printed from, so that the pages do not depend on a
terminal's width. Loads no plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from deepinfer_core.cli import COMMANDS, build_app
from deepinfer_core.cli.options import ENGINE_PANEL, SAMPLING_PANEL
from deepinfer_core.config import FIELD_SECTIONS, SECTIONS
from deepinfer_core.config_sources import ENV_FIELDS
from deepinfer_core.sampling_params import SamplingParams
from markup import code, quoted, table

SHARED_PANELS = {
    ENGINE_PANEL: "[engine options](#engine-options)",
    SAMPLING_PANEL: "[sampling options](#sampling-options)",
}
ENV_NAMES = {name: variable for variable, name in ENV_FIELDS.items()}


def render(root: Path) -> str:
    """The whole reference, as Markdown."""
    groups = {name: load_group(name) for name in COMMANDS}
    commands = {name: group.commands[name] for name, group in groups.items()}
    full = commands["generate"]
    summary = [(f"[`{name}`](#deepinfer-{name})", COMMANDS[name][1]) for name in COMMANDS]
    common = _own_options(groups["generate"].params)
    return "\n\n".join(
        [
            table(("command", "what it does"), summary),
            "Before the command:",
            _option_table(common),
            *(page for name in COMMANDS for page in _pages(("deepinfer", name), commands[name])),
            "## Engine options",
            _engine_table(p for p in full.params if p.rich_help_panel == ENGINE_PANEL),
            "## Sampling options",
            _sampling_table(p for p in full.params if p.rich_help_panel == SAMPLING_PANEL),
        ]
    )


def load_group(command: str) -> Any:
    """The application with the options of one command."""
    return typer.main.get_command(build_app([command]))


def examples_of(text: str) -> list[str]:
    """The command lines of a help text."""
    return [p.strip() for p in text.split("\n\n") if p.startswith("  ")]


def _pages(path: tuple[str, ...], command: Any) -> Iterator[str]:
    """One command, then its subcommands."""
    yield f"{'#' * len(path)} {' '.join(path)}"
    subcommands = getattr(command, "commands", {})
    is_runnable = not subcommands or getattr(command, "invoke_without_command", False)
    text = command.help or ""
    yield from (" ".join(p.split()) for p in text.split("\n\n") if _is_prose(p))
    if is_runnable:
        yield code(_usage(path, command))
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        if arguments:
            yield table(("argument", "what it is"), map(_argument_row, arguments))
        yield _option_table(_own_options(command.params))
        shared = {p.rich_help_panel for p in command.params} & set(SHARED_PANELS)
        if shared:
            links = [link for panel, link in SHARED_PANELS.items() if panel in shared]
            yield f"And the {' and the '.join(links)}."
    if examples := examples_of(text):
        yield "Examples:"
        yield code("\n".join(examples), "bash")
    for name, subcommand in subcommands.items():
        yield from _pages((*path, name), subcommand)


def _is_prose(paragraph: str) -> bool:
    return not paragraph.startswith("  ") and paragraph.strip() != "Examples:"


def _usage(path: tuple[str, ...], command: Any) -> str:
    words = [*path, "[OPTIONS]"]
    for argument in command.params:
        if argument.param_type_name == "argument":
            name = _argument_name(argument) + ("..." if argument.nargs == -1 else "")
            words.append(name if argument.required else f"[{name}]")
    return " ".join(words)


def _argument_name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _argument_row(argument: Any) -> tuple[str, str]:
    return f"`{_argument_name(argument)}`", argument.help or ""


def _own_options(params: Iterable[Any]) -> list[Any]:
    return [p for p in params if p.param_type_name == "option"
            and p.rich_help_panel not in SHARED_PANELS and p.name != "help"]  # fmt: skip


def _option_table(options: Iterable[Any]) -> str:
    return table(("option", "what it does"), [(_names(o), _help(o)) for o in options])


def _help(option: Any) -> str:
    is_plain = option.is_flag or option.default in (None, "", ())
    return (option.help or "") + ("" if is_plain else f" Default: `{option.default}`.")


def _names(option: Any) -> str:
    names = [*option.opts, *option.secondary_opts]
    if option.metavar and not option.is_flag:
        names[-1] += f" {option.metavar}"
    return quoted(names)


def _engine_table(options: Iterable[Any]) -> str:
    rows = []
    for option in options:
        section = FIELD_SECTIONS.get(option.name)
        setting, default, variable = "", "", ""
        if section is not None:
            setting, variable = f"`{section}.{option.name}`", f"`{ENV_NAMES[option.name]}`"
            default = _default(SECTIONS[section].model_fields[option.name])
        rows.append((_names(option), setting, variable, default, option.help or ""))
    return table(("option", "setting", "variable", "default", "what it is"), rows)


def _sampling_table(options: Iterable[Any]) -> str:
    fields = SamplingParams.model_fields
    # Commands have longer outputs by default than the field, and say so themselves.
    defaults = {name: _default(field) for name, field in fields.items()} | {
        "max_tokens": "see the command"
    }
    # Each form of `structured` is an option of its own.
    rows = [(_names(o), defaults.get(o.name, ""), o.help or "") for o in options]
    return table(("option", "default", "what it is"), rows)


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value in (None, (), {}) else f"`{value}`"
