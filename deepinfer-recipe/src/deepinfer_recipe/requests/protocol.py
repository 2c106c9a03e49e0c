"""What the requests of all protocols share: they can be read until they are converted, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from ..arguments import check_instance
from .body import RequestBody, parse_body
from .options import ConversionOptions


class _HasModel(Protocol):
    @property
    def model(self) -> str: ...


B = TypeVar("B", bound=_HasModel)


class ProtocolRequest(Generic[B]):
    """A parsed request body, consumed by conversion."""

    __slots__ = ("_body",)

    def __init__(self, body: RequestBody, read: Callable[[Any], B]) -> None:
        """Read a request body with the reader of a protocol.

        Raises:
            ValueError: the body is no JSON, or no request.
        """
        self._body: B | None = read(parse_body(body))

    @property
    def model(self) -> str:
        """The requested model name.

        Raises:
            RuntimeError: the request has been consumed.
        """
        return self._read().model

    def _read(self) -> B:
        if self._body is None:
            raise RuntimeError("protocol request has been consumed")
        return self._body

    def _take(self, options: ConversionOptions) -> B:
        check_instance("options", options, ConversionOptions)
        body = self._read()
        self._body = None
        return body


__all__ = ["ProtocolRequest", "RequestBody"]
