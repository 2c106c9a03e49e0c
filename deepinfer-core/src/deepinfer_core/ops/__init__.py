"""Op specs, selection of kernels, and references. Importing this package imports no torch."""

from deepinfer_core.ops import specs
from deepinfer_core.ops.spec import OP_SPECS, UNIVERSAL_FEATURES, OpSpec, op

__all__ = ["OP_SPECS", "UNIVERSAL_FEATURES", "OpSpec", "op", "specs"]
