"""Decode steps, times to the first token and throughput of one model with random weights.

`python measure.py CONFIG_DIR [results.jsonl]`: the directory holds the `config.json` of a dense
model.
Greedy, without end tokens, prefix cache and text; each prompt is new. A decode step is the
difference of two runs over the tokens between them; medians of three. The roofline counts the
weights and the cache once per step against 4.3 TB/s, and products against 790 TFLOP/s, which were
measured on an H200 in bfloat16.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import deepinfer_cuda.plugin
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny_tokenizer import write_tokenizer

BYTES_PER_S, FLOP_PER_S = 4.3e12, 790e12
CONTEXT, NUM_STEPS, NUM_RUNS = 1024, 64, 3


class Bench:
    """One engine, and what its model costs."""

    def __init__(self, directory: Path) -> None:
        self.config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        host = PluginHost(load_entry_points=False)
        host.register(deepinfer_cuda.plugin, name="cuda")
        self.engine = Engine.from_config(
            EngineConfig.from_flat(
                str(directory),
                load_format="dummy",
                dtype="bfloat16",
                prefix_caching=False,
                max_num_batched_tokens=16384,
                max_num_seqs=256,
                memory_fraction=0.85,
            ),
            host,
        )
        self._random = random.Random(time.time())
        c = self.config
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim = c.get("head_dim") or c["hidden_size"] // heads
        hidden = c["hidden_size"]
        layer = hidden * self.head_dim * (2 * heads + 2 * kv_heads)
        layer += 3 * hidden * c["intermediate_size"]
        self.head = hidden * c["vocab_size"]
        self.matrices = c["num_hidden_layers"] * layer
        """Numbers in all matrices but the output head."""
        self.kv_bytes = c["num_hidden_layers"] * 2 * kv_heads * self.head_dim * 2
        """Per token of context."""
        self.attention_flop = c["num_hidden_layers"] * 4 * heads * self.head_dim
        """Of one query and one key."""

    def run(self, num_prompts: int, length: int, num_tokens: int) -> float:
        """Seconds that a batch takes."""
        params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
        most = self.config["vocab_size"] - 300
        prompts = [
            [self._random.randrange(10, most) for _ in range(length)] for _ in range(num_prompts)
        ]
        torch.cuda.synchronize()
        start = time.perf_counter()
        for prompt in prompts:
            self.engine.add(prompt, params)
        while self.engine.has_unfinished:
            self.engine.advance()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def decode(self, batch: int) -> dict[str, Any]:
        self.run(batch, CONTEXT, 4)
        one, many = (
            statistics.median(self.run(batch, CONTEXT, count) for _ in range(NUM_RUNS))
            for count in (1, NUM_STEPS)
        )
        step_s = (many - one) / (NUM_STEPS - 1)
        context = CONTEXT + NUM_STEPS // 2
        bytes_moved = 2 * (self.matrices + self.head) + batch * context * self.kv_bytes
        flop = batch * (2 * (self.matrices + self.head) + context * self.attention_flop)
        roof_s = max(bytes_moved / BYTES_PER_S, flop / FLOP_PER_S)
        return {"test": "decode", "batch": batch, "ms": step_s * 1e3, "of_roof": roof_s / step_s}

    def first_token(self, length: int) -> dict[str, Any]:
        self.run(1, length, 1)
        seconds = statistics.median(self.run(1, length, 1) for _ in range(NUM_RUNS))
        flop = 2 * self.matrices * length + 2 * self.head
        flop += self.attention_flop * length * (length + 1) / 2
        roof_s = flop / FLOP_PER_S
        return {"test": "ttft", "prompt": length, "ms": seconds * 1e3, "of_roof": roof_s / seconds}

    def throughput(self, num_prompts: int, length: int, num_tokens: int) -> dict[str, Any]:
        self.run(num_prompts, length, 8)
        seconds = self.run(num_prompts, length, num_tokens)
        rate = num_prompts * num_tokens / seconds
        return {"test": "throughput", "prompts": num_prompts, "out": num_tokens, "tok_s": rate}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        shutil.copytree(sys.argv[1], directory, dirs_exist_ok=True)
        write_tokenizer(Path(directory))
        bench = Bench(Path(directory))
    results = [bench.decode(batch) for batch in (1, 8, 32, 128)]
    results += [bench.first_token(length) for length in (1024, 8192, 32768)]
    results.append(bench.throughput(256, 512, 256))
    facts = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    lines = [json.dumps({**facts, **result}) for result in results]
    print("\n".join(lines))
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
