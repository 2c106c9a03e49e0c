"""Linear layers over `gemm.dense`, or over `gemm.coded` where weights stay codes.

Knows nothing of what is projected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import Tensor, nn

from deepinfer_core.models.layers.packed import coded_parameters, empty_parameter, rows_per_scale
from deepinfer_core.ops.table import OpTable
from deepinfer_core.plugin_api.kernel import Problem


class Linear(nn.Module):
    """y = x W^T + b, with W [out_features, in_features]."""

    def __init__(
        self,
        ops: OpTable,
        in_features: int,
        out_features: int,
        *,
        dtype: str,
        role: str,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.weight = empty_parameter(out_features, in_features, dtype=dtype)
        self.scale: nn.Parameter | None = None
        self.bias = empty_parameter(out_features, dtype=dtype) if bias else None
        self.gemm = ops.bind(
            "gemm.dense",
            dtype=dtype,
            role=role,
            features=("bias",) if bias else (),
            in_features=in_features,
            out_features=out_features,
        )

    def prepare(self) -> None:
        """Lay the weight out as the kernel wants it, once it is loaded."""
        self.weight = nn.Parameter(self.gemm.prepare(self.weight.data), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features]."""
        gemm = self.gemm
        y: Tensor = (
            gemm(x, self.weight, self.bias)
            if self.scale is None
            else gemm(x, self.weight, self.scale, gemm.problem.scheme, self.bias)
        )
        return y

    def takes_codes(self, scheme: str) -> bool:
        """See `HoldsCodes`: any matrix may stay codes alone."""
        return True

    def coded_problem(self, scheme: str) -> Problem:
        """See `HoldsCodes`."""
        return replace(self.gemm.problem, op="gemm.coded", scheme=scheme)

    def keep_codes(self, ops: OpTable, scheme: str) -> None:
        """See `HoldsCodes`."""
        self.gemm = ops.bind_problem(self.coded_problem(scheme))
        self.weight, self.scale = coded_parameters(tuple(self.weight.shape), scheme)


class MergedLinear(Linear):
    """Several projections of one input as one GEMM; outputs side by side, in the given order.

    Args:
        parts: checkpoint name of each projection -> its output features.
    """

    def __init__(
        self,
        ops: OpTable,
        in_features: int,
        parts: Mapping[str, int],
        *,
        dtype: str,
        role: str,
        bias: bool = False,
    ) -> None:
        super().__init__(ops, in_features, sum(parts.values()), dtype=dtype, role=role, bias=bias)
        self.parts = dict(parts)

    def takes_codes(self, scheme: str) -> bool:
        """See `HoldsCodes`: each part but the last must end where a block of scales does."""
        sizes = list(self.parts.values())[:-1]
        return all(size % rows_per_scale(scheme) == 0 for size in sizes)

    def unpacked(self, path: str) -> Iterator[tuple[str, Tensor]]:
        """Rows of the weight and of the bias, under the names of the separate projections."""
        parent = path.rpartition(".")[0]
        start = 0
        for name, size in self.parts.items():
            yield f"{parent}.{name}.weight", self.weight.data[start : start + size]
            if self.scale is not None:
                block = rows_per_scale(str(self.gemm.problem.scheme))
                rows = slice(start // block, -(-(start + size) // block))
                yield f"{parent}.{name}.scale", self.scale.data[rows]
            if self.bias is not None:
                yield f"{parent}.{name}.bias", self.bias.data[start : start + size]
            start += size
