"""Where an image of a conversation comes from. Fetching and decoding are done in `images`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, cast

from ..arguments import check_choice, check_str

ImageDetail: TypeAlias = Literal["low", "high", "original", "auto"]
ImageSourceKind: TypeAlias = Literal["data_url", "url", "bytes"]
_DETAILS = ("low", "high", "original", "auto")


class ImageSource:
    """Base of the image sources: a detail level and the place in the request that names it.

    `path` is what error messages show, such as `messages.0.content[1]`; request conversion
    fills it, and it is empty otherwise.
    """

    __slots__ = ("_detail", "_path", "_value")
    kind: ImageSourceKind

    def __init__(self, value: str | bytes, detail: ImageDetail, path: str) -> None:
        if type(self) is ImageSource:
            raise TypeError("cannot create 'ImageSource' instances")
        self._value = value
        self._detail = cast(ImageDetail, check_choice("detail", detail, _DETAILS))
        self._path = check_str("path", path)

    @property
    def detail(self) -> ImageDetail:
        """How finely the image is to be seen."""
        return self._detail

    @property
    def path(self) -> str:
        """Request location of the image; empty when the source has none."""
        return self._path

    @property
    def data_url(self) -> str | None:
        """The data URL of a `DataUrlImageSource`."""
        return None

    @property
    def url(self) -> str | None:
        """The URL of a `UrlImageSource`."""
        return None

    @property
    def data(self) -> bytes | None:
        """The encoded image of a `BytesImageSource`."""
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImageSource) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        value = self._value if self.kind == "url" else f"<{len(self._value)} long>"
        return f"{type(self).__name__}({value!r}, detail={self._detail!r}, path={self._path!r})"

    def _key(self) -> tuple[object, ...]:
        return (self.kind, self._value, self._detail, self._path)


class DataUrlImageSource(ImageSource):
    """An image in a data URL with a base64 or percent-encoded body."""

    __slots__ = ()
    kind: ImageSourceKind = "data_url"

    def __init__(self, data_url: str, detail: ImageDetail = "high", *, path: str = "") -> None:
        super().__init__(check_str("data_url", data_url), detail, path)

    @property
    def data_url(self) -> str:
        """The data URL."""
        return cast(str, self._value)


class UrlImageSource(ImageSource):
    """An image behind an external URL."""

    __slots__ = ()
    kind: ImageSourceKind = "url"

    def __init__(self, url: str, detail: ImageDetail = "high", *, path: str = "") -> None:
        super().__init__(check_str("url", url), detail, path)

    @property
    def url(self) -> str:
        """The URL."""
        return cast(str, self._value)


class BytesImageSource(ImageSource):
    """An image given as encoded bytes."""

    __slots__ = ()
    kind: ImageSourceKind = "bytes"

    def __init__(
        self, data: bytes | Iterable[int], detail: ImageDetail = "high", *, path: str = ""
    ) -> None:
        super().__init__(bytes(data), detail, path)

    @property
    def data(self) -> bytes:
        """The encoded image."""
        return cast(bytes, self._value)
