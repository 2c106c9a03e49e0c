"""Which drafter a checkpoint has, and how it is built beside its target."""

from __future__ import annotations

import torch

from deepinfer_core.models.decoder_config import DecoderConfig
from deepinfer_core.models.deepseek_v4_config import V4Config
from deepinfer_core.models.deepseek_v41_config import V41Config
from deepinfer_core.models.drafters.dspark_v4 import DsparkV4
from deepinfer_core.models.drafters.dspark_v41 import DsparkV41
from deepinfer_core.models.drafters.interface import Drafter
from deepinfer_core.models.drafters.mtp_v3 import MtpV3
from deepinfer_core.models.drafters.mtp_v4 import MtpV4
from deepinfer_core.ops.table import OpTable


def build_drafter(
    config: DecoderConfig | V4Config, ops: OpTable, *, dtype: str, first_cache: int
) -> Drafter | None:
    """Construct the drafter of a checkpoint on the meta device; `load_weights` fills it.

    Args:
        config: of the target as it was built: its caches' formats are the drafter's too.
        ops: the target's, not frozen yet.
        dtype: the target's.
        first_cache: how many caches the target has; the drafter's follow in the same batches.

    Returns:
        None if the checkpoint has no drafter.

    Raises:
        ModelLoadError: it has one of a form that is not supported.
        UnsupportedOpError: no kernel can serve one of its layers.
    """
    with torch.device("meta"):
        drafter = _build(config, ops, dtype, first_cache)
    return None if drafter is None else drafter.eval()


def drafter_name(config: object) -> str | None:
    """What kind of drafter a checkpoint has: `mtp` or `dspark`; None: none.

    Args:
        config: of its target.
    """
    if isinstance(config, V4Config) and config.dspark is not None:
        return "dspark"
    is_predicted = isinstance(config, DecoderConfig | V4Config) and config.num_predict_layers
    return "mtp" if is_predicted and not isinstance(config, V41Config) else None


def _build(
    config: DecoderConfig | V4Config, ops: OpTable, dtype: str, first_cache: int
) -> Drafter | None:
    if isinstance(config, V41Config):
        if config.dspark is not None:
            return DsparkV41(config, ops, dtype=dtype, first_cache=first_cache)
    elif isinstance(config, V4Config):
        if config.dspark is not None:
            return DsparkV4(config, ops, dtype=dtype, first_cache=first_cache)
        if config.num_predict_layers:
            return MtpV4(config, ops, dtype=dtype, first_cache=first_cache)
    elif config.num_predict_layers:
        return MtpV3(config, ops, dtype=dtype, first_cache=first_cache)
    return None
