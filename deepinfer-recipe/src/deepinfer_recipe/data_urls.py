"""Reading of data URLs (RFC 2397, as browsers read them): a MIME type and bytes."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

_BASE64_SUFFIX = re.compile(r";[ ]*base64\Z", re.IGNORECASE)
_MIME = re.compile(r"([!#$%&'*+.^_`|~\w-]+)/([!#$%&'*+.^_`|~\w-]+)[ ]*(?:;|\Z)", re.ASCII)
_WHITESPACE = bytes(range(0x09, 0x0B)) + b"\x0c\r "
_URL_MARGIN = "".join(map(chr, range(0x21)))


class DataUrlError(ValueError):
    """The text is no data URL, or its body is no base64."""


@dataclass(frozen=True, slots=True)
class DataUrl:
    """A data URL whose body is not decoded yet."""

    mime_type: str
    """Lower case, without parameters; `text/plain` if the URL has none."""
    is_base64: bool
    body: str

    def decode(self) -> bytes:
        """Return the bytes of the body.

        Raises:
            DataUrlError: the body is no base64.
        """
        raw = unquote_to_bytes(self.body)
        return forgiving_base64(raw) if self.is_base64 else raw


def parse_data_url(url: str) -> DataUrl:
    """Split a data URL into its parts.

    Raises:
        DataUrlError: it does not begin with `data:` or has no comma.
    """
    text = re.sub(r"[\t\n\r]", "", url.strip(_URL_MARGIN))
    if text[:5].lower() != "data:":
        raise DataUrlError("not a data URL")
    header, comma, body = text[5:].partition("#")[0].partition(",")
    if not comma:
        raise DataUrlError("data URL without a comma")
    header = header.strip(" ")
    suffix = _BASE64_SUFFIX.search(header)
    if suffix is not None:
        header = header[: suffix.start()]
    mime = _MIME.match(header.strip(" "))
    mime_type = f"{mime.group(1)}/{mime.group(2)}".lower() if mime else "text/plain"
    return DataUrl(mime_type, suffix is not None, body)


def forgiving_base64(raw: bytes) -> bytes:
    """Decode base64 whose padding may be missing and that may hold ASCII whitespace.

    Raises:
        DataUrlError: it is no base64.
    """
    packed = raw.translate(None, _WHITESPACE)
    if len(packed) % 4 == 0 and packed.endswith(b"="):
        packed = packed[:-2] if packed.endswith(b"==") else packed[:-1]
    if len(packed) % 4 == 1 or b"=" in packed:
        raise DataUrlError("invalid base64 length")
    try:
        return base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except binascii.Error as error:
        raise DataUrlError(str(error)) from None
