"""Typed reading of a `config.json`-like mapping. Knows no model.

Every problem becomes a `ModelLoadError` that names the file, the field and the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepinfer_core.errors import ModelLoadError

_REQUIRED: Any = object()


class RawConfig:
    """A checkpoint's own configuration fields, read one by one.

    Args:
        fields: the parsed JSON object, or a GGUF file's metadata under the same names.
        source: where they come from; begins every error message.

    A field that is absent or null takes the default; without a default it is an error.
    """

    def __init__(self, fields: Mapping[str, Any], source: str) -> None:
        self.fields = fields
        self.source = source

    def integer(self, name: str, default: int | None = _REQUIRED) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.malformed(name, value, "a whole number")
        return value

    def size(self, name: str, default: int | None = _REQUIRED) -> int:
        """An integer of at least 1."""
        if not (value := self.integer(name, default)):
            raise self.malformed(name, value, "at least 1")
        return value

    def optional_integer(self, name: str, default: int | None = None) -> int | None:
        return None if self._get(name, default) is None else self.integer(name, default)

    def number(self, name: str, default: float | None = _REQUIRED) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.malformed(name, value, "a number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return None if self._get(name, None) is None else self.number(name)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.malformed(name, value, "true or false")
        return value

    def text(self, name: str, default: str = _REQUIRED) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.malformed(name, value, "a string")
        return value

    def optional_list(self, name: str, kind: type) -> list[Any] | None:
        """A list whose items are all of one type, or None."""
        value = self._get(name, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise self.malformed(name, value, f"a list of {kind.__name__}")
        return value

    def section(self, name: str) -> RawConfig | None:
        """A nested object, or None when it is absent or null."""
        value = self._get(name, None)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.malformed(name, value, "an object")
        return RawConfig(value, f"{self.source}: {name}")

    def malformed(self, name: str, value: object, wanted: str) -> ModelLoadError:
        return ModelLoadError(f"{self.source}: {name} = {value!r} is not {wanted}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.fields.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ModelLoadError(f"{self.source}: {name} is missing")
        return default
