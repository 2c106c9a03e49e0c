"""Images in requests: what a URL or file field may be, and the placeholder that stands for it."""

from __future__ import annotations

from typing import Any

from ..conversation import DataUrlImageSource, ImageDetail, ImageSource, UrlImageSource
from ..data_urls import DataUrlError, parse_data_url
from .errors import bad_request

UNSUPPORTED_IMAGE = "[Unsupported Image]"
NO_FILE_ID = "file_id is not supported. Pass the image as a base64 data url instead."
_MIME_TYPES = frozenset(f"image/{name}" for name in ("jpeg", "jpg", "png", "gif", "webp"))
_UNSUPPORTED = (
    "You have uploaded an unsupported {0}. Please make sure your {0} is valid and has one of the "
    "following formats: webp, png, jpeg, and gif."
)


def image_from_url(url: str, detail: ImageDetail, *, prefix: str, path: str) -> ImageSource:
    """Return the source for an image URL: http(s), or base64 data in a supported format.

    Raises:
        ConversionError: any other URL.
    """
    if url[:4].lower() == "http":
        return UrlImageSource(url, detail, path=path)
    if "base64," not in url:
        raise bad_request(f"{prefix}Unsupported image_url format")
    _check_data_url(
        url, noun="image", prefix=prefix, no_url="Unsupported image_url format",
        no_base64="Invalid base64 data",
    )  # fmt: skip
    return DataUrlImageSource(url, detail, path=path)


def check_file(block: dict[str, Any], *, prefix: str) -> dict[str, Any]:
    """Return a file block as the image block it stands for: it must hold a data URL of an image.

    Raises:
        ConversionError: there is no such data, or it is no image.
    """
    file_id, file_data = block["file_id"], block["file_data"]
    if file_id is not None and file_data is not None:
        raise bad_request(f"{prefix}file cannot have both file_id and file_data")
    if file_id is not None and block["filename"] is not None:
        raise bad_request(f"{prefix}file cannot have filename when file_id is present")
    if file_id is not None:
        raise bad_request(prefix + NO_FILE_ID)
    if file_data is None:
        raise bad_request(f"{prefix}file must have a file_id or file_data")
    invalid = "file_data is not a valid base64 data url"
    _check_data_url(file_data, noun="file", prefix=prefix, no_url=invalid, no_base64=invalid)
    return {"type": "image_url", "url": file_data, "detail": "high"}


def _check_data_url(url: str, *, noun: str, prefix: str, no_url: str, no_base64: str) -> None:
    try:
        parsed = parse_data_url(url)
    except DataUrlError:
        raise bad_request(prefix + no_url) from None
    if parsed.mime_type not in _MIME_TYPES:
        raise bad_request(prefix + _UNSUPPORTED.format(noun))
    try:
        parsed.decode()
    except DataUrlError:
        raise bad_request(prefix + no_base64) from None
