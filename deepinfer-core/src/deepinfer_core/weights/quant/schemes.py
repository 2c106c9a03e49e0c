"""Which schemes a checkpoint's configuration stands for."""

from __future__ import annotations

from deepinfer_core.weights.quant.fp8_block import Fp8Block
from deepinfer_core.weights.quant.mxfp4 import Mxfp4
from deepinfer_core.weights.quant.source import QuantizedSource
from deepinfer_core.weights.source import TensorSource


def decode(source: TensorSource, fp8_block_size: tuple[int, int] | None) -> TensorSource:
    """The source as numbers; itself if nothing is quantised.

    Raises:
        ModelLoadError: scales are missing or do not fit.
    """
    if fp8_block_size is None:
        return source
    return QuantizedSource(source, [Fp8Block(fp8_block_size), Mxfp4()])
