"""The real model, quantised, against transformers' own loading of the same GGUF file, in float32.

`make model` fetches the file; `make test` does so first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from deepinfer_core import LLM, SamplingParams
from deepinfer_core.config import EngineConfig
from deepinfer_core.plugins import PluginHost
from deepinfer_core.verify.report import verify_model

MODEL = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
NUM_TOKENS = 64
NEAR_TIE = 1e-3
"""Two correct programs may part where the top two logits are nearer than this."""

TEXTS = (
    "The capital of France is",
    "Once upon a time, there was a",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are",
    "1, 1, 2, 3, 5, 8,",
    "Q: What is the boiling point of water?\nA:",
    "Dear Sir or Madam,\n\n",
    "import numpy as np\n\n",
    "Größe und Gewicht der Katze:",
    "In 1969,",
)
QUESTIONS = (
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "What is 12 times 12?",
    "Name three primary colors.",
    "Translate 'good morning' to Spanish.",
    "Explain photosynthesis to a child.",
    "Give me a recipe for pancakes.",
    "Who wrote Romeo and Juliet?",
    "List the planets of the solar system.",
    "What is a prime number?",
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    assert MODEL.exists(), f"{MODEL} is missing; run `make model`"
    with LLM(MODEL, dtype="float32", max_model_len=512, max_num_seqs=20) as llm:
        yield llm


@pytest.fixture(scope="module")
def theirs() -> transformers.PreTrainedModel:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        MODEL.parent, gguf_file=MODEL.name, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


@pytest.mark.slow
def test_greedy_answers_agree_with_transformers(
    llm: LLM, theirs: transformers.PreTrainedModel
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    outputs = llm.generate(list(TEXTS), params)
    outputs += llm.chat([[{"role": "user", "content": q}] for q in QUESTIONS], params)
    assert len(outputs) == 20
    differences = []
    for output in outputs:
        prompt, answer = output.prompt_token_ids, output.outputs[0].token_ids
        assert len(answer) == NUM_TOKENS
        with torch.no_grad():
            logits = theirs(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        wanted = logits.argmax(dim=-1).tolist()
        # Teacher forcing: up to the first difference this is their own greedy answer.
        first = next((i for i in range(NUM_TOKENS) if wanted[i] != answer[i]), None)
        if first is not None:
            top = logits[first].topk(2).values
            gap = (top[0] - top[1]).item()
            differences.append((output.prompt, first, gap))
            print(f"{output.prompt!r} parts at token {first}: top two are {gap:.2e} apart")
    assert all(gap < NEAR_TIE for _, _, gap in differences), differences
    assert len(differences) <= 2


@pytest.mark.slow
def test_answers_make_sense(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=32)
    [output] = llm.chat([{"role": "user", "content": "What is the capital of France?"}], params)
    assert output.text == "The capital of France is Paris."
    assert output.outputs[0].finish_reason == "stop"


@pytest.mark.slow
def test_random_combinations_equal_the_plain_run_bit_by_bit() -> None:
    """`deepinfer verify` on the real model; both points have the cache, one overlaps."""
    config = EngineConfig.from_flat(str(MODEL), dtype="float32", batch_invariant=True)
    host = PluginHost(load_entry_points=False)
    report = verify_model(config, num_points=2, first=7, max_tokens=4, host=host)
    assert report.passed, "\n".join(map(report.reproduction, report.results))
    assert all(result.num_hit_tokens for result in report.results)
