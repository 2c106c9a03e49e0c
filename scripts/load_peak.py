"""How much memory loading takes beside what stays, and how often each byte is read.

    python scripts/load_peak.py --gigabytes 1
    python scripts/load_peak.py --gigabytes 0.25 --quantization keep

Writes a checkpoint of random FP8 and FP4 codes with the layers of DeepSeek-V4, loads it in a
process of its own, and prints figures as JSON. Needs Linux, whose kernel counts the peak.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from deepinfer_core.models.coded import keep_stored_codes
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.models.synthetic import write_synthetic_checkpoint
from deepinfer_core.ops.table import reference_table
from deepinfer_core.weights.checkpoint import open_checkpoint
from deepinfer_core.weights.cut_config import plan_cut

LAYER_GIGABYTES = 0.0665
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "vocab_size": 4096,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "head_dim": 128,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 512,
    "o_groups": 4,
    "o_lora_rank": 256,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1024,
    "sliding_window": 128,
    "index_n_heads": 16,
    "index_head_dim": 64,
    "index_topk": 64,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "expert_dtype": "fp4",
    "quantization_config": {
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
}


def main() -> None:
    """Write, load in a fresh process, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the checkpoint")
    parser.add_argument("--quantization", choices=("keep", "dequantize"), default="dequantize")
    parser.add_argument("--write", type=Path, metavar="DIR", help="only write, to a new directory")
    parser.add_argument("--load", type=Path, metavar="DIR", help="only load what was written")
    words = parser.parse_args()
    if words.write is not None:
        write(words.write, words.gigabytes)
    elif words.load is not None:
        print(json.dumps(measure(words.load, words.quantization)))
    else:
        with tempfile.TemporaryDirectory() as directory:
            write(Path(directory) / "model", words.gigabytes)
            command = [sys.executable, __file__, "--load", f"{directory}/model"]
            command += ["--quantization", words.quantization]
            sys.exit(subprocess.run(command, check=False).returncode)


def write(directory: Path, gigabytes: float) -> None:
    """A checkpoint of about this size."""
    num_layers = max(1, round(gigabytes / LAYER_GIGABYTES))
    ratios = {"num_hidden_layers": num_layers, "compress_ratios": [0] * num_layers}
    with tempfile.TemporaryDirectory() as source:
        (Path(source) / "config.json").write_text(json.dumps(CONFIG | ratios))
        write_synthetic_checkpoint(Path(source), directory, partial(plan_cut))


def measure(directory: Path, quantization: str) -> dict[str, Any]:
    """Load a checkpoint and say what that took."""
    reads = count_reads()
    checkpoint = open_checkpoint(directory)
    ops = reference_table()
    model = build_model(checkpoint.info, ops, dtype="bfloat16")
    keep_stored_codes(model, checkpoint, ops, quantization)  # type: ignore[arg-type]
    before = memory_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    start = time.perf_counter()
    load_weights(model, checkpoint, device="cpu")
    elapsed_s = time.perf_counter() - start
    resident = sum(parameter.nbytes for parameter in model.parameters())
    peak = memory_bytes("VmHWM") - before
    stored = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    return {
        "quantization": quantization,
        "stored_bytes": stored,
        "resident_bytes": resident,
        "peak_bytes": peak,
        "peak_of_resident": round(peak / resident, 3),
        "read_bytes": sum(size for _, _, size in reads),
        "read_twice_bytes": overlap(reads),
        "elapsed_s": round(elapsed_s, 2),
    }


def count_reads() -> list[tuple[int, int, int]]:
    """A list that grows by (file, offset, size) with each read of tensors from now on."""
    reads: list[tuple[int, int, int]] = []
    preadv = os.preadv

    def counted(file: int, buffers: Any, offset: int) -> int:
        size = preadv(file, buffers, offset)
        reads.append((os.fstat(file).st_ino, offset, size))
        return size

    os.preadv = counted  # type: ignore[assignment]
    return reads


def overlap(reads: list[tuple[int, int, int]]) -> int:
    """How many bytes were read before."""
    seen_until: dict[int, int] = {}
    again = 0
    for file, offset, size in sorted(reads):
        end = seen_until.get(file, 0)
        again += max(0, min(end, offset + size) - offset)
        seen_until[file] = max(end, offset + size)
    return again


def memory_bytes(field: str) -> int:
    """A field of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
