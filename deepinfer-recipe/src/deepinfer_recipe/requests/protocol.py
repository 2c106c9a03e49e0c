"""What the requests of all protocols share: they can be read until they are converted, once."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from ..arguments import check_instance
from .options import ConversionOptions


class _HasModel(Protocol):
    @property
    def model(self) -> str: ...


B = TypeVar("B", bound=_HasModel)


class ProtocolRequest(Generic[B]):
    """A parsed request body, consumed by conversion."""

    __slots__ = ("_body",)

    def __init__(self, body: B) -> None:
        self._body: B | None = body

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
