"""A checkpoint's JSON files: read with errors that name the file, and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepinfer_core.errors import ModelLoadError


def read_json(path: Path) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ModelLoadError: the file is absent, unreadable, or holds something else; names the file.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path.parent}: no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ModelLoadError(f"{path}: holds {type(fields).__name__}, not an object")
    return fields


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    """Write a JSON object, for people as well."""
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
