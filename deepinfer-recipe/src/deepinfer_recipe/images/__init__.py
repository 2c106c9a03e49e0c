"""Images: where they come from, how they are prepared, what they cost."""

from .errors import CalcResizeError, ImageError
from .fetch import ReqwestImageFetcher
from .preprocess import OpenCvImagePreprocessor
from .resolver import ImageResolver
from .sizes import fit, num_tokens
from .types import ImageInfo, ImageQuota, MultiModalData, PreprocessOptions

__all__ = [
    "CalcResizeError",
    "ImageError",
    "ImageInfo",
    "ImageQuota",
    "ImageResolver",
    "MultiModalData",
    "OpenCvImagePreprocessor",
    "PreprocessOptions",
    "ReqwestImageFetcher",
    "fit",
    "num_tokens",
]
