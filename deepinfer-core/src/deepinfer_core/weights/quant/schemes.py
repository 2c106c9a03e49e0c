"""Which schemes a checkpoint's configuration stands for."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from deepinfer_core.weights.quant.fp8_block import Fp8Block
from deepinfer_core.weights.quant.mxfp4 import Mxfp4
from deepinfer_core.weights.quant.source import QuantizedSource
from deepinfer_core.weights.source import RowSource, TensorSource
from deepinfer_core.weights.stored import holds_codes


def decode(source: RowSource, fp8_block_size: tuple[int, int] | None) -> TensorSource:
    """The source as numbers; itself if nothing is quantised.

    Raises:
        ModelLoadError: scales are missing or do not fit.
    """
    if fp8_block_size is None:
        return source
    return QuantizedSource(source, [Fp8Block(fp8_block_size), Mxfp4()])


def keep_codes(source: TensorSource, wanted: Mapping[str, Tensor]) -> TensorSource:
    """The source, in which matrices stay codes where a model wants codes.

    Args:
        wanted: checkpoint name -> where it goes; scales of codes are wanted as `x.scale`.
    """
    if not isinstance(source, QuantizedSource):
        return source
    return source.keep([name for name, view in wanted.items() if holds_codes(view)])
