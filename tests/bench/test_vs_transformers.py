"""SmolLM2 against transformers: same weights, prompts, lengths, threads and process, taking turns.

`DEEPINFER_BENCH_REPEATS` (default 5) and `OMP_NUM_THREADS` may be set. Targets are printed beside
the ratios and not asserted: on a busy machine they say little. The best of the turns counts.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import asdict, dataclass, field

import pytest
import torch
import transformers
from deepinfer_core.bench.clock import StepClock
from deepinfer_core.bench.gemms import gemm_ceiling
from deepinfer_core.bench.speed import greedy
from deepinfer_core.llm import LLM

PROMPT_LEN = OUTPUT_LEN = 64
SIZES = (1, 16)
TARGETS = {
    ("bfloat16", 1): 1.5,
    ("float32", 1): 1.5,
    ("bfloat16", 16): 2.5,
    ("float32", 16): 1.7,
}
REPEATS = int(os.environ.get("DEEPINFER_BENCH_REPEATS", "5"))


@dataclass
class Best:
    """The best of some turns, each number on its own."""

    total_s: float = float("inf")
    """Prompt and output."""
    decode_ms: float = float("inf")
    """Per step, from the first token to the last."""
    cpu_s: float = float("inf")
    """Of the whole process, spinning threads included."""
    token_ids: list[list[int]] = field(default_factory=list, repr=False)

    def take(self, total_s: float, decode_ms: float, cpu_s: float) -> None:
        self.total_s = min(self.total_s, total_s)
        self.decode_ms = min(self.decode_ms, decode_ms)
        self.cpu_s = min(self.cpu_s, cpu_s)


class Ticks(transformers.StoppingCriteria):
    """Stops nothing, but notes when each token is there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def run_ours(llm: LLM, prompts: list[list[int]], best: Best) -> None:
    llm.engine.reset_prefix_cache()
    encoded = [{"prompt_token_ids": prompt} for prompt in prompts]
    with StepClock(llm.engine) as clock:
        begun, cpu = time.perf_counter(), time.process_time()
        outputs = llm.generate(encoded, greedy(OUTPUT_LEN), on_error="raise", progress=False)
        ended, cpu_ended = time.perf_counter(), time.process_time()
    decode = clock.decode_steps(len(prompts))
    assert len(decode) == OUTPUT_LEN - 1
    best.take(ended - begun, sum(s.total_s for s in decode) / len(decode) * 1e3, cpu_ended - cpu)
    best.token_ids = [output.outputs[0].token_ids for output in outputs]


def run_theirs(model: transformers.PreTrainedModel, prompts: list[list[int]], best: Best) -> None:
    ids, ticks = torch.tensor(prompts), Ticks()
    begun, cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=OUTPUT_LEN,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=transformers.StoppingCriteriaList([ticks]),
        )
    ended, cpu_ended = time.perf_counter(), time.process_time()
    assert output.shape[1] == PROMPT_LEN + OUTPUT_LEN
    decode_ms = (ticks.times[-1] - ticks.times[0]) / (OUTPUT_LEN - 1) * 1e3
    best.take(ended - begun, decode_ms, cpu_ended - cpu)
    best.token_ids = output[:, PROMPT_LEN:].tolist()


def share_of_equal_ids(ours: list[list[int]], theirs: list[list[int]]) -> float:
    pairs = [pair for a, b in zip(ours, theirs, strict=True) for pair in zip(a, b, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


@pytest.mark.bench
@pytest.mark.timeout(7200)
def test_against_transformers(smollm2, publish):
    generator = random.Random(0)
    prompts = [[generator.randrange(100, 40_000) for _ in range(PROMPT_LEN)] for _ in range(16)]
    lines = [
        "dtype     requests  decode ms/step: theirs   ours  GEMMs   ratio  (ceiling)"
        "   whole run: ratio  CPU ratio  target  equal ids"
    ]
    results = []
    for dtype in ("bfloat16", "float32"):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            smollm2.parent, gguf_file=smollm2.name, dtype=getattr(torch, dtype)
        ).eval()
        theirs.generation_config.eos_token_id = None
        with LLM(smollm2, dtype=dtype, max_num_seqs=16, num_blocks=16 * 9 + 1) as llm:
            best = {(who, n): Best() for who in ("ours", "theirs") for n in SIZES}
            for _ in range(REPEATS + 1):  # the first turn warms up, and is seldom the best
                for n in SIZES:
                    run_ours(llm, prompts[:n], best["ours", n])
                    run_theirs(theirs, prompts[:n], best["theirs", n])
            gemms = gemm_ceiling(llm.engine.runner.model, SIZES, repeats=REPEATS + 2)
        for n in SIZES:
            ours, other, gemm_ms = best["ours", n], best["theirs", n], gemms[n].best_ms
            result = {
                "dtype": dtype,
                "num_requests": n,
                "decode_ratio": other.decode_ms / ours.decode_ms,
                "ceiling_ratio": other.decode_ms / gemm_ms,
                "total_ratio": other.total_s / ours.total_s,
                "cpu_ratio": other.cpu_s / ours.cpu_s,
                "target": TARGETS[dtype, n],
                "gemm_ms": gemm_ms,
                "equal_ids": share_of_equal_ids(ours.token_ids, other.token_ids),
                "ours": asdict(ours) | {"token_ids": None},
                "theirs": asdict(other) | {"token_ids": None},
            }
            results.append(result)
            lines.append(
                f"{dtype:10}{n:8}{other.decode_ms:24.1f}{ours.decode_ms:7.1f}{gemm_ms:7.1f}"
                f"{result['decode_ratio']:8.2f}{result['ceiling_ratio']:11.2f}"
                f"{result['total_ratio']:19.2f}{result['cpu_ratio']:11.2f}"
                f"{result['target']:8.1f}{result['equal_ids']:11.0%}"
            )
    publish("vs_transformers", lines, {"repeats": REPEATS, "runs": results})
