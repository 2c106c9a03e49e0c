"""Lower the kernels in Triton for an NPU where there is none: `python lower_triton.py [CHIP]`.

In an environment of its own, since triton-ascend takes Triton's place:

    pip install triton-ascend==3.2.0 pybind11 'numpy<2'
    PYTHONPATH=deepinfer-ascend/src python scripts/lower_triton.py Ascend910B3

Each kernel goes from Triton to linalg. Where `bishengir-compile` is on the PATH (pip package
ascendnpu-ir) it goes on to the chip's own compiler, which only the toolkit has: to miss that one
alone is to pass. Exits with 1 if a kernel does not get through.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import types
from typing import Any

os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())

import triton.backends.ascend.compiler as ascend
from deepinfer_ascend.kernels import programs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource

HIDDEN = 8192
"""Numbers of the longest row that is claimed."""
HALF, WIDE, INT, BYTE = "*bf16", "*fp32", "i32", "*i8"
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, int | bool]]] = {
    "norm.layer": (
        programs.layer_norm,
        {
            **dict.fromkeys(("x", "residual", "weight", "bias", "y", "sum"), HALF),
            **dict.fromkeys(("num_rows", "size", "x_stride", "residual_stride"), INT),
            "eps": "fp32",
        },
        {"HAS_RESIDUAL": True, "HAS_WEIGHT": True, "HAS_BIAS": True, "BLOCK": HIDDEN},
    ),
    "hc.collapse": (
        programs.collapse,
        {"streams": HALF, "weights": WIDE, "y": HALF, "num_rows": INT, "size": INT},
        {"NUM_STREAMS": 4, "BLOCK": HIDDEN},
    ),
    "engram.gate": (
        programs.gate,
        {
            **dict.fromkeys(("streams", "keys", "values", "q_weight", "k_weight"), HALF),
            "skip": BYTE,
            "y": HALF,
            **dict.fromkeys(("num_rows", "size"), INT),
            **dict.fromkeys(("eps", "factor", "smallest"), "fp32"),
        },
        {"NUM_STREAMS": 4, "HAS_SKIP": True, "BLOCK": HIDDEN},
    ),
    "kv.compress": (
        programs.compress,
        {
            "cache": WIDE,
            "rows": "*i32",
            "bias": WIDE,
            "y": WIDE,
            **dict.fromkeys(("num_groups", "width", "block_stride", "block_size"), INT),
        },
        {"NUM_ROWS": 8, "NUM_PLACES": 4, "OVERLAPS": True, "BLOCK": 512},
    ),
}
"""Op -> program, types of its arguments by their names without `_ptr`, and constants."""
NO_TOOLKIT = "External hivmc run fails"
"""What the middle end says when all that is missing is the chip's own compiler, called last."""


def lower(name: str, chip: str, compiler: str | None) -> str:
    """How far a kernel gets.

    Raises:
        Exception: whatever the compiler says.
    """
    function, types_by_name, constants = KERNELS[name]
    signature = {
        argument: types_by_name[argument.removesuffix("_ptr")]
        for argument in function.arg_names
        if argument not in constants
    }
    backend = ascend.AscendBackend(GPUTarget("npu", chip, 0))
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    metadata = {"target": backend.target, **options.__dict__}
    source = ASTSource(fn=function, signature=signature, constants=constants)
    code, modules = backend.get_codegen_implementation(), backend.get_module_map()
    module = ascend.make_ttir(source.make_ir(options, code, modules, context), metadata, options)
    linalg = ascend.ttir_to_linalg(module, metadata, options, named_ops=True)
    if compiler is None:
        return f"linalg, {len(linalg)} bytes"
    try:
        binary = ascend.linalg_to_bin_enable_npu_compile_A2_A3(linalg, metadata, options)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode() if isinstance(error.stderr, bytes) else error.stderr
        if NO_TOOLKIT not in str(said):
            raise
        return "the middle end"
    return f"a binary of {len(binary)} bytes"


def main(chip: str) -> int:
    compiler, num_failed = shutil.which("bishengir-compile"), 0
    ascend.NPUUtils = lambda: types.SimpleNamespace(get_arch=lambda: chip)
    for name in KERNELS:
        try:
            print(f"{name}: {lower(name, chip, compiler)}", flush=True)
        # A border: each kernel on its own.
        except Exception as error:
            num_failed += 1
            said = getattr(error, "stderr", None) or error
            print(f"{name}: failed, {' '.join(str(said).split())[:400]}", flush=True)
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "Ascend910B3"))
