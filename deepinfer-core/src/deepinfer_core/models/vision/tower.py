"""`VisionTower`: a vision transformer, an aligner, and the marks around rows of an image.

DeepSeek-V4.1 (arXiv:2609.19969). Parameters have the released names, see `stored_name`. Images are
encoded one by one, so none depends on its company.
"""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.norm import RMSNorm
from deepinfer_core.models.layers.packed import empty_parameter
from deepinfer_core.models.vision.config import VisionConfig
from deepinfer_core.ops.table import OpTable

BESIDE_THE_TOWER = re.compile(r"^vision\.(aligner\.|image_)")
"""Parts that the released checkpoints name without the tower."""
NORM_EPS = 1e-6


class VisionNorm(RMSNorm):
    """RMS norm in float32 with float32 weights, whatever the model's dtype."""

    def __init__(self, ops: OpTable, size: int) -> None:
        super().__init__(ops, size, NORM_EPS, dtype="float32", role="vision.norm")

    def forward(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C], rounded once."""
        return super().forward(x.float()).to(x.dtype)


class VisionAttention(nn.Module):
    """Full attention among the patches of one image."""

    def __init__(self, ops: OpTable, config: VisionConfig, *, dtype: str) -> None:
        super().__init__()
        size = config.hidden_size
        self.shape = (config.num_heads, config.head_dim)
        self.wqkv = Linear(ops, size, 3 * size, dtype=dtype, role="vision.qkv", bias=True)
        self.wo = Linear(ops, size, size, dtype=dtype, role="vision.o", bias=True)
        self.rope = ops.bind(
            "rope.apply",
            dtype=dtype,
            role="vision.rope",
            head_dim=config.head_dim,
            rotary_dim=config.head_dim,
        )

    def forward(self, x: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
        """[N, C] -> [N, C]; positions [N] are rows of `cos_sin`."""
        q, k, v = self.wqkv(x).view(len(x), 3, *self.shape).unbind(1)
        q, k = self.rope(q, k, positions, cos_sin)
        # No op yet: attention without a cache and a causal mask is used here only, once an image.
        y = F.scaled_dot_product_attention(*(t.transpose(0, 1).unsqueeze(0) for t in (q, k, v)))
        out: Tensor = self.wo(y[0].transpose(0, 1).reshape(x.shape))
        return out


class VisionMLP(nn.Module):
    """w2(silu(gate) * up), where `w1` gives both, the gate first."""

    def __init__(self, ops: OpTable, config: VisionConfig, *, dtype: str) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.w1 = Linear(ops, size, 2 * inner, dtype=dtype, role="vision.gate_up")
        self.w2 = Linear(ops, inner, size, dtype=dtype, role="vision.down")
        self.silu_mul = ops.bind(
            "act.silu_mul", dtype=dtype, role="vision.act", intermediate_size=inner
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        y: Tensor = self.w2(self.silu_mul(self.w1(x)))
        return y


class VisionBlock(nn.Module):
    """Attention and a gated feed-forward layer, each behind a norm."""

    def __init__(self, ops: OpTable, config: VisionConfig, *, dtype: str) -> None:
        super().__init__()
        self.norm1 = VisionNorm(ops, config.hidden_size)
        self.attn = VisionAttention(ops, config, dtype=dtype)
        self.norm2 = VisionNorm(ops, config.hidden_size)
        self.mlp = VisionMLP(ops, config, dtype=dtype)

    def forward(self, x: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        x = x + self.attn(self.norm1(x), positions, cos_sin)
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class PatchEmbed(nn.Module):
    """One row for each square of pixels, in reading order."""

    def __init__(self, ops: OpTable, config: VisionConfig, *, dtype: str) -> None:
        super().__init__()
        self.side = config.patch_size
        self.proj = Linear(
            ops,
            3 * self.side**2,
            config.hidden_size,
            dtype=dtype,
            role="vision.patch",
            bias=True,
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """[H, W, 3] uint8 -> [H / side * W / side, C]."""
        side, (height, width, _) = self.side, pixels.shape
        x = (pixels.float() / 255 - 0.5) / 0.5
        x = x.to(self.proj.weight.dtype).view(height // side, side, width // side, side, 3)
        # LAYOUT: a patch is its channels, each with its pixels row by row.
        y: Tensor = self.proj(x.permute(0, 2, 4, 1, 3).reshape(-1, 3 * side**2))
        return y


class Aligner(nn.Module):
    """Squares of patches to rows of the language model's width."""

    def __init__(self, ops: OpTable, config: VisionConfig, out_size: int, *, dtype: str) -> None:
        super().__init__()
        self.side = config.merge_size
        merged = config.hidden_size * self.side**2
        self.w1 = Linear(ops, merged, out_size, dtype=dtype, role="vision.align_in", bias=True)
        self.w2 = Linear(ops, out_size, out_size, dtype=dtype, role="vision.align_out", bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, columns, C] -> [rows / side, columns / side, out_size], both rounded up."""
        side, (rows, columns, size) = self.side, x.shape
        x = F.pad(x, (0, 0, 0, -columns % side, 0, -rows % side))
        x = x.view(-(-rows // side), side, -(-columns // side), side, size)
        # LAYOUT: a square is its channels, each with its patches row by row.
        x = x.permute(0, 2, 4, 1, 3).reshape(x.shape[0], x.shape[2], size * side**2)
        y: Tensor = self.w2(F.gelu(self.w1(x.flatten(0, 1))))
        return y.view(*x.shape[:2], -1)


class VisionTower(nn.Module):
    """Encodes prepared images.

    Args:
        out_size: hidden size of the language model.
    """

    def __init__(self, ops: OpTable, config: VisionConfig, out_size: int, *, dtype: str) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(ops, config, dtype=dtype)
        self.blocks = nn.ModuleList(
            VisionBlock(ops, config, dtype=dtype) for _ in range(config.num_layers)
        )
        self.norm = VisionNorm(ops, config.hidden_size)
        self.aligner = Aligner(ops, config, out_size, dtype=dtype)
        self.image_start = empty_parameter(out_size, dtype=dtype)
        self.image_newline = empty_parameter(out_size, dtype=dtype)
        self.image_end = empty_parameter(out_size, dtype=dtype)

    @torch.inference_mode()
    def forward(self, pixels: Tensor) -> Tensor:
        """Rows for the tokens of one image.

        Args:
            pixels: [H, W, 3] uint8 on the tower's device, as `prepare_image` makes them.

        Returns:
            [num_tokens, out_size] in the model's dtype: a start mark, rows in reading order with
            a mark after each line, and an end mark.
        """
        rows, columns = (side // self.config.patch_size for side in pixels.shape[:2])
        positions = torch.arange(rows * columns, device=pixels.device)
        cos_sin = rotation_table(rows, columns, self.config, pixels.device)
        x = self.patch_embed(pixels)
        for block in self.blocks:
            x = block(x, positions, cos_sin)
        grid = self.aligner(self.norm(x).view(rows, columns, -1))
        newlines = self.image_newline.expand(grid.shape[0], 1, -1)
        lines = torch.cat((grid, newlines), dim=1).flatten(0, 1)
        return torch.cat((self.image_start[None], lines, self.image_end[None]))

    @staticmethod
    def stored_name(name: str) -> str:
        """The released name of a parameter in a model that holds the tower as `vision`."""
        return BESIDE_THE_TOWER.sub(r"\1", name)


def rotation_table(rows: int, columns: int, config: VisionConfig, device: torch.device) -> Tensor:
    """[rows * columns, head_dim] float32: cosines, then sines, as `rope.apply` takes them.

    The first half of a patch's angles turns with its row, the second with its column. Angle i
    turns dimensions i and i + head_dim / 2.
    """
    exponents = torch.arange(0, config.head_dim // 2, 2, dtype=torch.float32, device=device)
    frequencies = config.rope_theta ** (-exponents / (config.head_dim // 2))
    line = torch.arange(rows, device=device)[:, None] * frequencies
    column = torch.arange(columns, device=device)[:, None] * frequencies
    angles = torch.cat(
        (line[:, None].expand(-1, columns, -1), column[None].expand(rows, -1, -1)), dim=-1
    ).flatten(0, 1)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
