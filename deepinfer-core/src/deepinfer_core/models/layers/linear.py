"""Linear layers over `gemm.dense`, or over `gemm.coded` where weights stay codes.

Knows nothing of what is projected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from torch import Tensor, nn

from deepinfer_core.models.layers.collectives import bind_sum
from deepinfer_core.models.layers.packed import (
    coded_parameters,
    columns_per_scale,
    empty_parameter,
    rows_per_scale,
)
from deepinfer_core.ops.table import OpTable
from deepinfer_core.parallel.mesh import WHOLE, Share
from deepinfer_core.plugin_api.kernel import Problem

Shard = Literal["out", "in", "terms"]
"""How ranks divide a matrix: each has some outputs; each has some inputs, and outputs are summed
over the ranks; or each has some inputs, and the caller sums (there is no bias then)."""


class Linear(nn.Module):
    """y = x W^T + b, with W [out_features, in_features], both as of a single rank.

    Args:
        shard: what the ranks of the mesh divide; None: each has all.
    """

    def __init__(
        self,
        ops: OpTable,
        in_features: int,
        out_features: int,
        *,
        dtype: str,
        role: str,
        bias: bool = False,
        shard: Shard | None = None,
    ) -> None:
        super().__init__()
        self.share = WHOLE
        if shard == "out":
            self.share = ops.mesh.share(out_features, f"outputs of {role}")
            out_features = self.share.size_of(out_features)
        elif shard is not None:
            self.share = ops.mesh.share(in_features, f"inputs of {role}").along(1)
            in_features = self.share.size_of(in_features)
        self.sum = bind_sum(ops, dtype=dtype, role=role) if shard == "in" else None
        self.weight = empty_parameter(out_features, in_features, dtype=dtype)
        self.scale: nn.Parameter | None = None
        self.bias = empty_parameter(out_features, dtype=dtype) if bias else None
        self.gemm = ops.bind(
            "gemm.dense",
            dtype=dtype,
            role=role,
            features=("bias",) if bias and self.sum is None else (),
            in_features=in_features,
            out_features=out_features,
        )

    def prepare(self) -> None:
        """Lay the weight out as the kernel wants it, once it is loaded."""
        self.weight = nn.Parameter(self.gemm.prepare(self.weight.data), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features], of what is divided this rank's share."""
        gemm = self.gemm
        bias = self.bias if self.sum is None else None
        y: Tensor = (
            gemm(x, self.weight, bias)
            if self.scale is None
            else gemm(x, self.weight, self.scale, gemm.problem.scheme, bias)
        )
        if self.sum is not None:
            y = self.sum(y)
            y = y if self.bias is None else y + self.bias
        return y

    def share_of(self, name: str) -> Share:
        """See `Shared`: of divided inputs there is one bias, which each rank has."""
        return WHOLE if self.share.axis == 1 and name.endswith(".bias") else self.share

    def takes_codes(self, scheme: str) -> bool:
        """See `HoldsCodes`: any matrix alone, and a share of one where it ends with a block."""
        axis = self.share.axis
        size = columns_per_scale(scheme) if axis else rows_per_scale(scheme)
        return self.share.count == 1 or self.weight.shape[axis] % size == 0

    def coded_problem(self, scheme: str) -> Problem:
        """See `HoldsCodes`."""
        return replace(self.gemm.problem, op="gemm.coded", scheme=scheme)

    def keep_codes(self, ops: OpTable, problem: Problem) -> None:
        """See `HoldsCodes`."""
        self.gemm = ops.bind_problem(problem)
        self.weight, self.scale = coded_parameters(tuple(self.weight.shape), str(problem.scheme))


class MergedLinear(Linear):
    """Several projections of one input as one GEMM; outputs side by side, in the given order.

    Args:
        parts: checkpoint name of each projection -> its output features, as of a single rank.
        shares: which of their outputs this rank has; of parts that are not named all.
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
        shares: Mapping[str, Share] | None = None,
    ) -> None:
        own = {name: (shares or {}).get(name, WHOLE) for name in parts}
        sizes = {name: own[name].size_of(size) for name, size in parts.items()}
        super().__init__(ops, in_features, sum(sizes.values()), dtype=dtype, role=role, bias=bias)
        self.parts, self.shares = sizes, own

    def share_of(self, name: str) -> Share:
        """See `Shared`."""
        return self.shares[name.split(".")[-2]]

    def takes_codes(self, scheme: str) -> bool:
        """See `HoldsCodes`: each part but the last must end where a block of scales does, and each
        that is a share."""
        last = list(self.parts)[-1]
        return all(
            size % rows_per_scale(scheme) == 0
            for name, size in self.parts.items()
            if name != last or self.shares[name].count > 1
        )

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
