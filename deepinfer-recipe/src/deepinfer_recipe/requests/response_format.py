"""The JSON Schema of a response format."""

from __future__ import annotations

from typing import Any

from .errors import bad_request
from .json_draft import SchemaError
from .json_schema import check_schema
from .strict_schema import StrictSchemaError, normalize


def check_response_schema(schema: Any, *, strict: bool) -> Any | None:
    """Check the schema of a response format; return its normal form if it is strict.

    Raises:
        ConversionError: it is no JSON Schema, or if strict has no normal form.
    """
    if not strict:
        try:
            check_schema(schema)
        except SchemaError as error:
            raise bad_request(f"Invalid json schema: {error}") from None
        return None
    try:
        return normalize(
            schema,
            allows_empty_root=False,
            root_error="The top level of the json schema must be an object.",
        )
    except StrictSchemaError as error:
        prefix = "Invalid json schema: " if error.is_shape else ""
        raise bad_request(f"{prefix}{error}") from None
