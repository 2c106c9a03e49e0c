"""Hyper-connections around a sublayer, and the collapse before the last norm."""

from __future__ import annotations

from torch import Tensor, nn

from deepinfer_core.models.deepseek_v4_config import V4Config
from deepinfer_core.models.layers.packed import empty_parameter
from deepinfer_core.ops.table import OpTable


class HyperConnection(nn.Module):
    """n residual streams, of which a sublayer reads a mixture and to which it writes."""

    features: tuple[str, ...] = ()

    def __init__(self, ops: OpTable, config: V4Config, *, dtype: str, role: str) -> None:
        super().__init__()
        n, size = config.hyper.num_streams, config.hidden_size
        self.hyper, self.norm_eps = config.hyper, config.norm_eps
        self.fn = empty_parameter(2 * n + n * n, n * size, dtype="float32")
        self.base = empty_parameter(2 * n + n * n, dtype="float32")
        self.scale = empty_parameter(3, dtype="float32")
        self.pre = ops.bind(
            "hc.pre",
            dtype=dtype,
            role=f"{role}.pre",
            features=self.features,
            hc_mult=n,
            hidden_size=size,
        )
        self.post = ops.bind(
            "hc.post", dtype=dtype, role=f"{role}.post", hc_mult=n, hidden_size=size
        )

    def read(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, n, D] -> the sublayer's input [T, D], and what `write` wants to know."""
        u, post, mix = self.pre(
            streams,
            self.fn,
            self.base,
            self.scale,
            self.norm_eps,
            self.hyper.eps,
            self.hyper.num_iters,
        )
        return u, post, mix

    def write(self, y: Tensor, streams: Tensor, post: Tensor, mix: Tensor) -> Tensor:
        """The sublayer's output [T, D] into the streams [T, n, D]."""
        written: Tensor = self.post(y, streams, post, mix)
        return written


class DelayedHyperConnection(HyperConnection):
    """One whose own coefficients of reading serve the sublayer after it."""

    features = ("delayed",)

    def read_with(self, streams: Tensor, pre: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `read`, with the coefficients [T, n] of the sublayer before; the last is its own."""
        u, post, mix, own_pre = self.pre(
            streams,
            self.fn,
            self.base,
            self.scale,
            self.norm_eps,
            self.hyper.eps,
            self.hyper.num_iters,
            previous=pre,
        )
        return u, post, mix, own_pre


def stream_mean(streams: Tensor) -> Tensor:
    """[T, n, D] -> [T, D], summed in order in float32."""
    first, *others = streams.float().unbind(1)
    for stream in others:
        first = first + stream
    return (first / streams.shape[1]).to(streams.dtype)


class HyperHead(nn.Module):
    """Collapses the streams behind the last layer."""

    def __init__(self, ops: OpTable, config: V4Config, *, dtype: str) -> None:
        super().__init__()
        n, size = config.hyper.num_streams, config.hidden_size
        self.eps, self.norm_eps = config.hyper.eps, config.norm_eps
        self.fn = empty_parameter(n, n * size, dtype="float32")
        self.base = empty_parameter(n, dtype="float32")
        self.scale = empty_parameter(1, dtype="float32")
        self.head = ops.bind("hc.head", dtype=dtype, role="hc.head", hc_mult=n, hidden_size=size)

    def forward(self, streams: Tensor) -> Tensor:
        """[T, n, D] -> [T, D]."""
        u: Tensor = self.head(streams, self.fn, self.base, self.scale, self.norm_eps, self.eps)
        return u
