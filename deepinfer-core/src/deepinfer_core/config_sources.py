"""Where each setting comes from: flag, environment, file, default, in this order.

Owns the mapping of names outside (flags, `DEEPINFER_*`, TOML keys) to fields, and the record of
which of them won. Knows what no field means.
"""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import TypeAdapter, ValidationError

from deepinfer_core.config import (
    FIELD_SECTIONS,
    SECTIONS,
    EngineConfig,
    nest_fields,
    unknown_name,
)
from deepinfer_core.errors import ConfigError
from deepinfer_core.field_types import describe_allowed

ENV_PREFIX = "DEEPINFER_"
ENV_FIELDS: dict[str, str] = {f"{ENV_PREFIX}{name.upper()}": name for name in FIELD_SECTIONS}
"""Environment variable -> flat field name; the only table of them."""
_BOOLS = {"true": True, "1": True, "yes": True, "on": True} | dict.fromkeys(
    ("false", "0", "no", "off"), False
)


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A configuration, and for every dotted path of a field where its value came from."""

    config: EngineConfig
    sources: dict[str, str]
    """Such as `default`, `file engine.toml`, `environment DEEPINFER_DTYPE`, `flag --dtype`."""


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One field, for people."""

    path: str
    value: object
    source: str
    doc: str


def resolve_config(
    *,
    file: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> ResolvedConfig:
    """Put a configuration together. A flag wins over the environment, it over the file.

    Args:
        file: TOML, with a table for each section or with flat names.
        env: default: this process's environment. Only `DEEPINFER_*` is looked at.
        flags: flat names; None means that the flag was not given.

    Raises:
        ConfigError: a name is unknown, a value does not parse or is not allowed, or the file
            cannot be read. Names field, value, what is allowed, and the source.
    """
    fields: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for values, origin in (
        (_read_file(Path(file)) if file is not None else {}, f"file {file}"),
        (_read_env(os.environ if env is None else env), "environment"),
        ({k: v for k, v in (flags or {}).items() if v is not None}, "flag"),
    ):
        fields.update(values)
        for name in values:
            sources[_path_of(name)] = _origin_of(name, origin)
    config = EngineConfig.from_tree({"model": {}, **nest_fields(fields)}, sources=sources)
    defaults = dict.fromkeys(map(_path_of, FIELD_SECTIONS), "default")
    return ResolvedConfig(config, {**defaults, **sources})


def explain(resolved: ResolvedConfig) -> list[ConfigRow]:
    """One row for each field, section by section, with what it means."""
    return [
        ConfigRow(
            path=f"{section}.{name}",
            value=getattr(getattr(resolved.config, section), name),
            source=resolved.sources[f"{section}.{name}"],
            doc=" ".join((field.description or "").split()),
        )
        for section, cls in SECTIONS.items()
        for name, field in cls.model_fields.items()
    ]


def _path_of(name: str) -> str:
    """Unknown names are reported by `nest_fields`, so they pass here."""
    section = FIELD_SECTIONS.get(name)
    return f"{section}.{name}" if section else name


def _origin_of(name: str, origin: str) -> str:
    if origin == "environment":
        return f"environment {ENV_PREFIX}{name.upper()}"
    return f"flag --{name.replace('_', '-')}" if origin == "flag" else origin


def _read_env(env: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for variable, text in sorted(env.items()):
        if not variable.startswith(ENV_PREFIX):
            continue
        name = ENV_FIELDS.get(variable)
        if name is None:
            raise unknown_name(variable, ENV_FIELDS, value=text, source="the environment")
        values[name] = parse_value(name, text, source=f"environment {variable}")
    return values


def parse_value(name: str, text: str, *, source: str) -> object:
    """Read a text as the type of its field: text as it is, lists also by comma.

    Raises:
        ConfigError: it is no value of that field.
    """
    section = FIELD_SECTIONS[name]
    field = SECTIONS[section].model_fields[name]
    field_type: TypeAdapter[Any] = TypeAdapter(cast(Any, Annotated[field.annotation, field]))
    for value in _readings(text):
        try:
            return field_type.validate_python(value)
        except ValidationError:
            continue
    raise ConfigError(
        "this does not parse as an allowed value",
        field=f"{section}.{name}",
        value=text,
        allowed=describe_allowed(field),
        source=source,
    )


def _readings(text: str) -> list[object]:
    """What a text may mean, the most literal first; the field's type picks."""
    readings: list[object] = [text]
    if text.lower() in _BOOLS:
        readings.append(_BOOLS[text.lower()])
    with contextlib.suppress(ValueError):
        readings.append(json.loads(text))
    return [*readings, [part.strip() for part in text.split(",") if part.strip()]]


def _read_file(path: Path) -> dict[str, Any]:
    """Flat fields of a TOML file."""
    source = f"file {path}"
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration cannot be read: {error}", source=source) from error
    except ValueError as error:  # of TOML and of UTF-8
        raise ConfigError(f"the configuration is no TOML: {error}", source=source) from error
    fields: dict[str, Any] = {}
    for key, value in tree.items():
        in_section = isinstance(value, dict) and key in SECTIONS
        for name, entry in (value if in_section else {key: value}).items():
            _check_key(name, entry, key if in_section else None, source)
            if name in fields:
                raise ConfigError(
                    f"{name} is set twice; keep one",
                    field=_path_of(name),
                    value=entry,
                    source=source,
                )
            fields[name] = entry
    return fields


def _check_key(name: str, value: object, section: str | None, source: str) -> None:
    home = FIELD_SECTIONS.get(name)
    if home is not None and section in (None, home):
        return
    if home is not None:
        message = f"{name} belongs to the section [{home}], not to [{section}]"
        raise ConfigError(message, field=f"{section}.{name}", value=value, source=source)
    if section is None and name in SECTIONS:
        message = f"{name} is a section: write its fields under [{name}]"
        raise ConfigError(message, field=name, value=value, source=source)
    known = SECTIONS[section].model_fields if section else {*FIELD_SECTIONS, *SECTIONS}
    raise unknown_name(name, known, value=value, source=source)
