"""Options that commands share, made from the fields of `EngineConfig` and `SamplingParams`.

A field is an option the moment it exists; its documentation is the help. A command asks for a
whole group by a parameter named `engine` or `sampling`. Imports no torch.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from deepinfer_core.cli import form_options
from deepinfer_core.cli.kernels_cmd import parse_overrides
from deepinfer_core.config import FIELD_SECTIONS, SECTIONS, unknown_name
from deepinfer_core.config_sources import ResolvedConfig, parse_value, resolve_config
from deepinfer_core.errors import ConfigError
from deepinfer_core.sampling_params import SamplingParams

Command = Callable[..., Any]

ENGINE_PANEL = "Engine (also: --set, --config, DEEPINFER_* variables)"
SAMPLING_PANEL = "Sampling"
_NAMES: dict[str, tuple[str, ...]] = {
    "model": ("--model", "-m"),
    "kind": ("--device", "--kind"),
    "plugins": ("--plugins", "--plugin", "-p"),
    "n": ("--n", "-n"),
}
"""Options whose names are not simply their field's."""

SAMPLING_NAMES = (
    *(name for name in SamplingParams.model_fields if name != "structured"),
    *form_options.NAMES,
)
"""Each form of an answer is an option of its own."""

NO_MODEL = "(not given)"

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def with_options(command: Command, *, model_required: bool = True) -> Command:
    """Replace the parameters `engine` and `sampling` of a command by options.

    The command then receives `engine` as a `ResolvedConfig` and `sampling` as a dict of the
    sampling parameters that were given.

    Args:
        model_required: False: a configuration without a model is shown as such.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(command).parameters.values()
    ]
    groups = {"sampling": _sampling_options(), "engine": _engine_options()}
    wanted = {name for name in groups if any(p.name == name for p in parameters)}
    own = [parameter for parameter in parameters if parameter.name not in groups]
    options = [option for name in groups if name in wanted for option in groups[name]]

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        if "sampling" in wanted:
            given = {name: values.pop(name) for name in SAMPLING_NAMES}
            values["sampling"] = read_sampling(given)
        if "engine" in wanted:
            flags = {name: values.pop(name) for name in FIELD_SECTIONS}
            file, settings = values.pop("config_file"), values.pop("settings")
            values["engine"] = read_engine(
                flags, file, settings or [], model_required=model_required
            )
        return command(**values)

    signature = inspect.Signature([*own, *options])
    run.__signature__ = signature  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return run


def read_engine(
    flags: Mapping[str, Any],
    file: Path | None,
    settings: list[str],
    *,
    model_required: bool = True,
) -> ResolvedConfig:
    """Put a configuration together from options.

    Args:
        flags: flat names; None and empty lists mean that the option was not given.
        settings: `section.field=value`, each worth as much as an option.

    Raises:
        ConfigError: a name is unknown, a value is not allowed, or something is given twice.
    """
    given = {name: value for name, value in flags.items() if value not in (None, [])}
    if "kernels" in given:
        given["kernels"] = parse_overrides(given["kernels"])
    for text in settings:
        name, value = _read_setting(text)
        if name in given:
            raise ConfigError("given twice", field=name, value=text, source="--set")
        given[name] = value
    try:
        return resolve_config(file=file, flags=given)
    except ConfigError as error:
        if error.field != "model.model" or error.value is not None:
            raise
        if model_required:
            raise ConfigError("no model: give a path with --model") from None
    resolved = resolve_config(file=file, flags={**given, "model": NO_MODEL})
    return replace(resolved, sources={**resolved.sources, "model.model": "nowhere"})


def read_sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters that were given, in the form of `SamplingParams`.

    Raises:
        ConfigError: a bias is not of the form ID=BIAS, or a file with a form cannot be read.
    """
    given = {
        name: value
        for name, value in values.items()
        if value not in (None, []) and name not in form_options.NAMES
    }
    form = form_options.read_form(values)
    if form is not None:
        given["structured"] = form
    if given.get("max_tokens") == 0:
        given["max_tokens"] = None
    if "logit_bias" in given:
        given["logit_bias"] = dict(map(_read_bias, given["logit_bias"]))
    return given


def _read_setting(text: str) -> tuple[str, object]:
    path, equals, value = text.partition("=")
    section, dot, name = path.strip().rpartition(".")
    if not equals or (dot and section not in SECTIONS):
        raise ConfigError(
            "not a setting",
            field="--set",
            value=text,
            allowed=f"section.field=value, where section is one of {', '.join(SECTIONS)}",
        )
    if name not in FIELD_SECTIONS or (dot and FIELD_SECTIONS[name] != section):
        known = SECTIONS[section].model_fields if dot else FIELD_SECTIONS
        raise unknown_name(name, known, value=text, source="--set")
    return name, parse_value(name, value.strip(), source="--set")


def _read_bias(text: str) -> tuple[str, float]:
    token_id, _, bias = text.partition("=")
    try:
        return token_id.strip(), float(bias)
    except ValueError:
        raise ConfigError(
            "not a bias", field="--logit-bias", value=text, allowed="ID=BIAS, such as 42=-1.5"
        ) from None


def _engine_options() -> list[inspect.Parameter]:
    options = [
        _option(name, SECTIONS[section].model_fields[name], ENGINE_PANEL)
        for name, section in FIELD_SECTIONS.items()
    ]
    file = typer.Option(
        "--config", help="TOML file with settings.", rich_help_panel=ENGINE_PANEL, dir_okay=False
    )
    settings = typer.Option(
        "--set",
        metavar="SECTION.FIELD=VALUE",
        help="Any setting by its path, such as cache.block_size=32; repeatable.",
        rich_help_panel=ENGINE_PANEL,
    )
    return [
        *options,
        _parameter("config_file", Annotated[Path | None, file]),
        _parameter("settings", Annotated[list[str] | None, settings]),
    ]


def _sampling_options() -> list[inspect.Parameter]:
    options = [
        _option(name, field, SAMPLING_PANEL)
        for name, field in SamplingParams.model_fields.items()
        if name != "structured"
    ]
    return [*options, *map(_form_option, form_options.NAMES)]


def _form_option(name: str) -> inspect.Parameter:
    is_flag = name == "json_object"
    repeatable = not is_flag and _type_of(form_options.field_of(name))[1]
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=form_options.help_of(name) + (" Repeatable." if repeatable else ""),
        metavar=None if is_flag else "TEXT",
        rich_help_panel=SAMPLING_PANEL,
        show_default=False,
    )
    kind = list[str] if repeatable else bool if is_flag else str
    return _parameter(name, Annotated[kind | None, option])


def _option(name: str, field: FieldInfo, panel: str) -> inspect.Parameter:
    """An option for a field. Its default is None, so that what was given can be told."""
    kind, repeatable, metavar = _type_of(field.annotation)
    flag = f"--{name.replace('_', '-')}"
    names = _NAMES.get(name, (flag,))
    if kind is bool:
        names = (f"{flag}/--no-{flag[2:]}",)
    help_text = " ".join((field.description or "").split())
    if repeatable:
        help_text += " Repeatable."
    if name == "max_tokens":
        help_text = "Output tokens at most; 0: as many as fit."
    option = typer.Option(
        *names,
        help=help_text,
        metavar=metavar,
        rich_help_panel=panel,
        show_default=False,
    )
    annotation = list[kind] | None if repeatable else kind | None  # type: ignore[valid-type]
    return _parameter(name, Annotated[annotation, option])


def _parameter(name: str, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _type_of(annotation: Any) -> tuple[type, bool, str | None]:
    """Type of one value, whether there may be many, and how to show it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _type_of(next(a for a in arguments if a is not type(None)))
    if origin is Annotated:
        return _type_of(arguments[0])
    if origin is Literal:
        return str, False, "|".join(arguments)
    if origin is dict:
        return str, True, "ID=BIAS" if _type_of(arguments[0])[0] is int else "OP=PROVIDER[,...]"
    if origin is tuple:
        return _type_of(arguments[0])[0], True, None
    return annotation, False, None
