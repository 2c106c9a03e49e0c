"""Options for the form of an answer: one for each form of `SamplingParams.structured`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepinfer_core.errors import ConfigError
from deepinfer_core.structured.spec import FORMS, StructuredOutput

NAMES = tuple(name for name in FORMS if name != "markup")  # which recipes give, not people
_HELPS = {
    "json_schema": "The answer is JSON that is valid for this JSON Schema; or @FILE.",
    "json_object": "The answer is a JSON object.",
    "regex": "The answer matches this regular expression (ECMAScript) as a whole; or @FILE.",
    "choice": "The answer is this text, or another one given so.",
    "grammar": "The answer belongs to this grammar in EBNF, from `root` on; or @FILE.",
    "lark": "The answer belongs to this grammar of Lark, from `start` on; or @FILE.",
    "structural_tag": "The answer belongs to this structural tag of xgrammar; or @FILE.",
}


def help_of(name: str) -> str:
    """What an option says of itself."""
    return _HELPS[name]


def read_form(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The form that was asked for, in the form of `StructuredOutput`; None: there is none.

    Raises:
        ConfigError: a file cannot be read.
    """
    given = {name: values[name] for name in NAMES if values.get(name) not in (None, [], False)}
    for name, value in given.items():
        if isinstance(value, str) and value.startswith("@"):
            given[name] = _read(name, Path(value[1:]))
    return given or None


def field_of(name: str) -> Any:
    """The type of a form's values."""
    return StructuredOutput.model_fields[name].annotation


def _read(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot be read: {error}", field=f"--{name.replace('_', '-')}", value=f"@{path}"
        ) from None
