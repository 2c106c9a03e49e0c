"""Image sources to prepared images, within the limits of a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..arguments import check_instance, check_list
from ..conversation import ImageSource
from ..data_urls import DataUrlError, parse_data_url
from .errors import ImageError, too_large, unusable
from .fetch import MAX_IMAGE_BYTES, ReqwestImageFetcher
from .preprocess import OpenCvImagePreprocessor, prepare
from .sizes import LOW_DETAIL_SIDE
from .types import ImageQuota, MultiModalData, PreprocessOptions

_Prepared = TypeVar("_Prepared")
_MAX_IMAGES = 600
_MAX_TOTAL_BYTES = 64 << 20
_MAX_URL_LENGTH = 8192
_MAX_SIDE = 8192
_MIME_TYPES = frozenset(f"image/{name}" for name in ("jpeg", "jpg", "png", "gif", "webp"))


class ImageResolver:
    """Fetches, decodes and prepares the images of a request."""

    def __init__(self, fetcher: ReqwestImageFetcher, preprocessor: OpenCvImagePreprocessor) -> None:
        self._fetcher = check_instance("fetcher", fetcher, ReqwestImageFetcher)
        check_instance("preprocessor", preprocessor, OpenCvImagePreprocessor)

    def resolve(self, sources: Sequence[ImageSource], quota: ImageQuota) -> MultiModalData:
        """Return the prepared images and add them to the quota; a failure adds nothing.

        Blocks while images are fetched.

        Raises:
            ImageError: an image is unusable, or a limit is exceeded.
        """
        return MultiModalData(self.each(sources, quota, prepare))

    def each(
        self,
        sources: Sequence[ImageSource],
        quota: ImageQuota,
        prepare_one: Callable[[bytes, PreprocessOptions], _Prepared],
    ) -> list[_Prepared]:
        """As `resolve`, with another way to prepare the content of an image file."""
        given = check_list("sources", sources, ImageSource)
        check_instance("quota", quota, ImageQuota)
        self._check_sources(given, quota)
        images: list[_Prepared] = []
        num_bytes = 0
        for index, source in enumerate(given):
            place = f"{source.path}.image[{index}]" if source.path else f"image[{index}]"
            try:
                data = self._read(source)
            except ImageError as error:
                raise error.at(place) from error
            num_bytes += len(data)
            _check_total(source, num_bytes + quota.byte_size())
            options = PreprocessOptions(source.detail, _MAX_SIDE, LOW_DETAIL_SIDE)
            try:
                images.append(prepare_one(data, options))
            except ImageError as error:
                raise error.at(place) from error
        quota.record(len(images), num_bytes)
        return images

    def _check_sources(self, sources: Sequence[ImageSource], quota: ImageQuota) -> None:
        count = len(sources) + quota.image_count()
        if sources and count > _MAX_IMAGES:
            message = f"Too many images: max {_MAX_IMAGES} images per request, got {count}"
            raise _at_path(sources[0], ImageError(message, "TooManyImages"))
        for source in sources:
            if source.url is not None:
                _check_url(source, source.url)

    def _read(self, source: ImageSource) -> bytes:
        if source.url is not None:
            return self._fetcher.download(source.url)
        data = source.data
        if source.data_url is not None:
            try:
                parsed = parse_data_url(source.data_url)
                if parsed.mime_type not in _MIME_TYPES:
                    raise unusable("UnsupportedMediaType")
                data = parsed.decode()
            except DataUrlError as error:
                raise unusable("InvalidDataUrl") from error
        if data is not None and len(data) > MAX_IMAGE_BYTES:
            raise too_large(MAX_IMAGE_BYTES)
        return data or b""


def _check_url(source: ImageSource, url: str) -> None:
    if len(url) > _MAX_URL_LENGTH:
        message = f"external link length {len(url)} too long, max link length {_MAX_URL_LENGTH}"
        raise _at_path(source, ImageError(message, "UrlTooLong"))
    if not url.lower().startswith(("http://", "https://")):
        raise _at_path(source, ImageError(f'invalid url: "{url}"', "InvalidUrl"))


def _check_total(source: ImageSource, num_bytes: int) -> None:
    if num_bytes > _MAX_TOTAL_BYTES:
        message = (
            f"Total image size exceeds the limit: max {_MAX_TOTAL_BYTES >> 20} MB per request, "
            f"got {num_bytes >> 20} MB"
        )
        raise _at_path(source, ImageError(message, "TotalSizeTooLarge"))


def _at_path(source: ImageSource, error: ImageError) -> ImageError:
    return error.at(source.path) if source.path else error
