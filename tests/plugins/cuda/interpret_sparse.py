"""As `interpret.py`, of sparse attention and what such models have beside it: short cases, as a
query takes long here.

TRITON_INTERPRET=1 python interpret_sparse.py
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import interpreted_plugin
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.checks import claimed_cases
from deepinfer_core.testing.laws import check_numerics
from deepinfer_core.testing.subject import make_subject
from deepinfer_core.testing.trial import Trial
from deepinfer_cuda import heuristics_index

CASES = {
    ("norm.layer", "cuda.triton", "float16"): ("hidden33-bias-residual", "hidden576", "hidden64"),
    ("norm.layer", "cuda.triton", "float32"): ("hidden576-bias",),
    ("hc.pre", "cuda.triton", "float32"): ("4x64", "3x20-delayed"),
    ("hc.pre", "cuda.triton", "float16"): ("4x64-delayed",),
    ("hc.post", "cuda.triton", "float16"): ("4x64", "3x20"),
    ("hc.head", "cuda.triton", "float16"): ("4x64", "3x20"),
    ("hc.collapse", "cuda.triton", "float32"): ("4x64", "3x20"),
    ("kv.compress", "cuda.triton", "float32"): (
        *("overlap-4x64-strided_cache", "apart-8x32", "overlap-3x20"),
    ),
    ("quant.encode", "cuda.triton", "float32"): (
        *("656-37", "584-37-turned", "528-37", "288-37", "132-37-turned", "68-37"),
    ),
    ("quant.encode", "cuda.triton", "float16"): ("132-144-turned",),
    ("spec.verify", "cuda.triton", "int32"): ("depth1", "depth5", "depth8"),
    ("index.select", "cuda.triton", "float32"): (
        *("decode-16x32x24x1", "decode-candidates-strided_cache-given-16x32x24x4"),
        *("decode-records-strided_cache-132-3x20x2x1", "mixed-candidates-kept-3x20x2x1"),
    ),
    ("index.select", "cuda.triton", "float16"): ("decode-records-strided_cache-68-16x32x24x4",),
    ("index.select", "cuda.triton_invariant", "float16"): ("decode-strided_cache-3x20x2x1",),
    ("attn.merge", "cuda.triton", "float32"): ("9x64", "9x20"),
    ("attn.merge", "cuda.triton", "float16"): ("9x20",),
    ("attn.sparse_mla", "cuda.triton", "float32"): (
        *("all-3x26x20x5", "records-656-16x80x64x24", "records-528+288-3x26x20x5"),
    ),
    ("attn.sparse_mla", "cuda.triton", "float16"): ("one-16x80x64x24", "records-584-3x26x20x5"),
    ("attn.sparse_mla", "cuda.triton_invariant", "float32"): ("all-3x26x20x5",),
    ("attn.sparse_mla", "cuda.triton_plain", "float16"): ("two-3x26x20x5",),
}
TOKEN_COUNTS = {"attn.sparse_mla": (3,), "hc.pre": (17,)}
"""Instead of those of a case."""
heuristics_index.MAX_SHARES = 3


def try_case(trial):
    """What is wrong, or nothing."""
    try:
        check_numerics(trial)
    except AssertionError as error:
        return str(error)
    return ""


def main():
    # The interpreter computes with numpy, which warns of log2(0) where a row has seen nothing.
    np.seterr(divide="ignore")
    host = PluginHost(load_entry_points=False)
    subject = make_subject(host, host.register(interpreted_plugin, name="interpreted"), "cpu")
    kernels = {(kernel.op.split("@")[0], kernel.provider): kernel for kernel in subject.kernels}
    found = {}
    for (op, provider, dtype), names in CASES.items():
        kernel = kernels[op, provider]
        cases = {case.name: case for case in claimed_cases(kernel, dtype)}
        for name in names:
            counts = TOKEN_COUNTS.get(op, cases[name].token_counts)
            trial = Trial(subject, kernel, replace(cases[name], token_counts=counts), dtype)
            found[" ".join((op, provider, dtype, name))] = try_case(trial)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
