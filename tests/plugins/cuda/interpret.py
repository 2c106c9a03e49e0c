"""Runs the plugin's kernels in Triton's interpreter and prints what came out, as JSON.

    TRITON_INTERPRET=1 python interpret.py

A program of its own: whether kernels are interpreted is decided when they are imported.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import interpreted_plugin
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.run import all_checks, run_check
from deepinfer_core.testing.subject import make_subject
from deepinfer_core.testing.tiny import write_tiny_checkpoint

CASES = {
    "attn.paged": (
        *("decode-plain-64x9x3x16", "decode-window-20x4x4x5", "decode-all-20x4x4x5"),
        *("prefill-lse-64x9x3x16", "chunks-window-20x4x4x5", "mixed-softcap-20x4x4x5"),
        *("mixed-strided-20x4x4x5", "mixed-all-20x4x4x5"),
    ),
    ("attn.paged", "cuda.triton_invariant"): (*("decode-all-20x4x4x5", "chunks-window-20x4x4x5"),),
    "attn.mla": ("decode-16x64x16x16", "chunks-strided_cache-lse_out-3x20x6x5"),
    "attn.mla_prefill": (
        *("decode-6x20x6x6x20x5", "mixed-6x20x6x6x20x5"),
        "prefill-strided_cache-lse_out-16x64x32x16x32x16",
    ),
    "gemm.dense": ("64to96", "57to33-bias"),
    "attn.qkv": ("6x2x64x64-qk_norm-strided_cache", "3x3x20x12", "3x3x20x12-interleaved"),
    "moe.route": ("8to2-sqrtsoftplus", "8to2-hash", "8to2-image-bias", "8to2-groups-bias"),
    "moe.experts": ("expert_map",),
    "moe.coded": ("fp8_block128-limit", "fp8_block32", "mxfp4-expert_map"),
    ("moe.coded", "cuda.triton_rounded"): ("fp8_block128-expert_map-rounded_rows",),
    "gemm.coded": (*("fp8_block128-192to130-bias", "fp8_block32-192to130", "mxfp4-192to130-bias"),),
    ("gemm.coded", "cuda.triton_rounded"): (
        *("fp8_block128-384to256-rounded_rows", "fp8_block128-192to130-bias-rounded_rows"),
    ),
}
"""Those of the slow ops, or of a provider of one; a program takes milliseconds here."""
ELSEWHERE = {
    *("attn.merge", "attn.sparse_mla", "index.select", "norm.layer", "kv.compress", "spec.verify"),
    *("hc.pre", "hc.post", "hc.head", "hc.collapse", "quant.encode"),
}
"""Ops that `interpret_sparse.py` runs."""
MAX_CASES = 3
"""Of every other op in a dtype, spread over its list."""
PROMPTS = [[7, 3, 9, 11, 5], [8, 2]]
MAX_TOKENS = 4


def check_kernels():
    """Check -> its op, its dtype, the outcome and why."""
    by_group = {}
    host = PluginHost(load_entry_points=False)
    subject = make_subject(host, host.register(interpreted_plugin, name="interpreted"), "cpu")
    for check in all_checks(subject, ("L1",)):
        by_group.setdefault((check.op, check.provider, check.dtype), []).append(check)
    chosen = [
        check
        for (op, provider, _), checks in by_group.items()
        if op not in ELSEWHERE
        for check in choose(op, provider, checks)
    ]
    results = [run_check(check) for check in chosen]
    return {
        check.id: [check.op, check.dtype, result.outcome, result.message]
        for check, result in zip(chosen, results, strict=True)
    }


def choose(op, provider, checks):
    names = CASES.get((op, provider), CASES.get(op))
    if names is not None:
        by_name = {check.name: check for check in checks}
        return [by_name[name] for name in names]
    step = (len(checks) - 1) / (MAX_CASES - 1)
    return [checks[place] for place in sorted({round(i * step) for i in range(MAX_CASES)})]


def generate(directory, host):
    """Greedy tokens, and who served attention."""
    fields = {"dtype": "float32", "num_blocks": 64, "max_num_seqs": 2}
    engine = Engine.from_config(EngineConfig.from_flat(str(directory), **fields), host)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    requests = [request for prompt in PROMPTS for request in engine.add(prompt, params)]
    while engine.has_unfinished:
        engine.advance()
    providers = {choice.op: choice.provider for choice in engine.op_choices}
    return [request.output_token_ids for request in requests], providers


def compare(family):
    """Tokens of core's references, tokens of the kernels, and who served the second."""
    with tempfile.TemporaryDirectory() as directory:
        write_tiny_checkpoint(directory, family)
        host = PluginHost(load_entry_points=False)
        expected, _ = generate(directory, host)
        host.register(interpreted_plugin, name="interpreted")
        return [expected, *generate(directory, host)]


def main():
    # The interpreter computes with numpy, which warns of log2(0) where a row has seen nothing.
    np.seterr(divide="ignore")
    models = {family: compare(family) for family in ("llama", "qwen3", "deepseek_v3")}
    print(json.dumps({"checks": check_kernels(), "models": models}))


if __name__ == "__main__":
    main()
