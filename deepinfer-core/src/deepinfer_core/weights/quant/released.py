"""How released checkpoints store each tensor: which are codes, of what kind, and where scales are.

DeepSeek-V3 and those who store as it does keep float32 scales in `x.weight_scale_inv`; V4 and V4.1
keep powers of two in `x.scale`, and their experts as MXFP4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, bfloat16, float32

from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.ops.reference.codes import GROUP, MXFP4, fp8_scheme
from deepinfer_core.weights.cut_config import text_fields
from deepinfer_core.weights.quant.encode import encode_fp8, encode_mxfp4
from deepinfer_core.weights.source import TensorEntry
from deepinfer_core.weights.stored import CODES, holds_codes

EXPERT = re.compile(r"\.experts\.\d+\.")
MATRICES = re.compile(
    r"\.(?:[qkvo]_proj|q_[ab]_proj|kv_a_proj_with_mqa|kv_b_proj|gate_proj|up_proj|down_proj"
    r"|indexer\.wq_b|self_attn\.indexer\.wk|attn\.(?:wq_a|wq_b|wkv|wo_a|wo_b)"
    r"|(?:experts\.\d+|shared_experts)\.w[123]|engram\.wkv|\d+\.(?:e_proj|h_proj|main_proj))"
    r"\.weight$"
)
"""What is stored in FP8 where anything is."""
TABLE = re.compile(r"\.engram\.embed\.weight$")
TABLE_BLOCK = (1, 32)
WIDE = re.compile(
    r"(?:^|[._])hc_\w+$|\.attn_sink$|\.ape$|\.gate\.(?:bias|bias_vl|e_score_correction_bias)$"
    r"|^vision\.blocks\.\d+\.norm[12]\."
)
"""What stays float32."""


@dataclass(frozen=True, slots=True)
class ReleasedFormat:
    """The format of one checkpoint."""

    block_size: tuple[int, int] | None
    """None: nothing is coded."""
    fp4_experts: bool
    powers: bool

    @classmethod
    def of_config(cls, fields: Mapping[str, Any]) -> ReleasedFormat:
        """The format that a `config.json` states.

        Raises:
            ModelLoadError: it is malformed.
        """
        quantization = fields.get("quantization_config")
        if quantization is None:
            return cls(None, False, False)
        block_size = read_block_size(RawConfig(quantization, "quantization_config"))
        expert_dtype = text_fields(fields).get("expert_dtype", quantization.get("expert_dtype"))
        return cls(block_size, expert_dtype == "fp4", quantization.get("scale_fmt") == "ue8m0")

    def entries(self, name: str, wanted: Tensor) -> dict[str, TensorEntry]:
        """The stored tensors that stand for one of the model's, whose data is not looked at."""
        shape, is_integer = tuple(wanted.shape), not wanted.is_floating_point()
        if holds_codes(wanted):
            return {name: TensorEntry(shape, CODES[wanted.dtype][0], False)}
        match self._kind(name):
            case "fp4":
                rows, columns = shape
                packed, scales = (rows, columns // 2), (rows, columns // GROUP)
                return self._pair(name, TensorEntry(packed, "I8", False), scales)
            case "fp8":
                sizes = zip(shape, self._block(name), strict=True)
                grid = tuple(-(-size // block) for size, block in sizes)
                return self._pair(name, TensorEntry(shape, "F8_E4M3", False), grid)
        dtype = "I64" if is_integer else "F32" if WIDE.search(name) else "BF16"
        return {name: TensorEntry(shape, dtype, not is_integer)}

    def encode(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """The stored tensors, of a tensor of the model."""
        if holds_codes(tensor) or not tensor.is_floating_point():
            return {name: tensor.contiguous()}
        kind = self._kind(name)
        if kind is None:
            return {name: tensor.to(float32 if WIDE.search(name) else bfloat16)}
        if kind == "fp4":
            codes, scales = encode_mxfp4(tensor)
        else:
            codes, scales = encode_fp8(tensor, self._block(name), powers=self._has_powers(name))
        return {name: codes, self.scale_name(name): scales}

    def kept_as(self, name: str) -> str | None:
        """The scheme of `gemm.coded` under which a matrix can stay codes; None if there is none."""
        match self._kind(name):
            case "fp4":
                return MXFP4
            case "fp8":
                return fp8_scheme(self._block(name))
        return None

    def scale_name(self, name: str) -> str:
        """Where the scales of a matrix are."""
        if name.startswith("model."):
            return f"{name}_scale_inv"
        return f"{name.removesuffix('.weight')}.scale"

    def _kind(self, name: str) -> Literal["fp8", "fp4"] | None:
        if self.block_size is None:
            return None
        if self.fp4_experts and EXPERT.search(name):
            return "fp4"
        return "fp8" if MATRICES.search(name) or TABLE.search(name) else None

    def _block(self, name: str) -> tuple[int, int]:
        assert self.block_size is not None
        return TABLE_BLOCK if TABLE.search(name) else self.block_size

    def _has_powers(self, name: str) -> bool:
        # V3.1 rounds its scales to powers of two, and still stores them as float32.
        return self.powers and not name.startswith("model.")

    def _pair(
        self, name: str, codes: TensorEntry, scales: tuple[int, ...]
    ) -> dict[str, TensorEntry]:
        dtype = "F8_E8M0" if self._has_powers(name) else "F32"
        return {name: codes, self.scale_name(name): TensorEntry(scales, dtype, dtype == "F32")}


def read_block_size(quantization: RawConfig) -> tuple[int, int]:
    """Rows and columns of an FP8 matrix that share a scale.

    Raises:
        ModelLoadError: `weight_block_size` is missing or malformed.
    """
    sizes = quantization.optional_list("weight_block_size", int)
    if sizes is None or len(sizes) != 2 or min(sizes) < 1:
        raise quantization.malformed(
            "weight_block_size", sizes, "[rows, columns], such as [128, 128]"
        )
    return sizes[0], sizes[1]
