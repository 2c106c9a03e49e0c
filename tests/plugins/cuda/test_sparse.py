"""Triton's interpreter runs the kernels of sparse attention; see `test_interpreter.py`."""

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")
PROGRAM = Path(__file__).parent / "interpret_sparse.py"
OPS = {
    *("attn.merge", "attn.sparse_mla", "index.select", "norm.layer", "kv.compress", "spec.verify"),
    *("hc.pre", "hc.post", "hc.head", "hc.collapse", "quant.encode"),
}


def test_kernels_of_sparse_attention_agree_with_the_truth(run_program):
    found = json.loads(run_program(PROGRAM, TRITON_INTERPRET="1"))
    assert {name: message for name, message in found.items() if message} == {}
    assert {name.split()[0] for name in found} == OPS
