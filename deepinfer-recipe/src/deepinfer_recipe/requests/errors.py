"""The error of a request that its protocol allows but DeepSeek's API does not accept."""

from __future__ import annotations

from ..jsontext import dumps_compact


class ConversionError(Exception):
    """A request is invalid or cannot be converted.

    `status_code` is the HTTP status and `body` the JSON text of the answer; `str()` is the
    message alone.
    """

    status_code: int
    body: str


def bad_request(message: str) -> ConversionError:
    """Return the error for a request that the client has to change."""
    error = ConversionError(message)
    error.status_code = 400
    error.body = dumps_compact(
        {
            "error": {
                "message": message,
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_request_error",
            }
        }
    )
    return error
