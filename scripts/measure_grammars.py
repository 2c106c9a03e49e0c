"""What constrained answers cost: masks at a large vocabulary, and whole steps.

    python scripts/measure_grammars.py masks TOKENIZER [--backend xgrammar]
    python scripts/measure_grammars.py steps MODEL [--requests 32]

`masks` fills masks along real answers of several forms over the vocabulary of a `tokenizer.json`;
`steps` runs the same number of requests with a form and without, and compares decode steps. Prints
JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from deepinfer_core import LLM
from deepinfer_core.plugin_api import GrammarBackendSpec
from deepinfer_core.plugins import PluginHost
from deepinfer_core.structured.marks import make_vocabulary
from deepinfer_core.structured.notation import to_notation
from deepinfer_core.structured.spec import StructuredOutput
from deepinfer_core.text.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "email", "tags", "address"],
    "additionalProperties": False,
}
ANSWER = {
    "name": "Ada Lovelace, Countess of Lovelace",
    "age": 36,
    "email": "ada@example.com",
    "tags": ["red", "blue", "green"],
    "address": {"street": "12 St James's Square", "zip": "SW1Y 4JH"},
}
FREE = {"title": "A text", "parts": [{"text": "It was a dark night.", "n": [1, 2.5, None]}] * 3}
SENTENCE = r"[A-Z][a-z]+( [a-z]+){3,20}\."
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "schema": ({"json_schema": PERSON}, json.dumps(ANSWER)),
    "any object": ({"json_object": True}, json.dumps(FREE)),
    "regex": ({"regex": SENTENCE}, "The quick brown fox jumps over the lazy dog and runs away."),
    "choice": ({"choice": ["positive", "negative", "neutral"]}, "negative"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    masks = commands.add_parser("masks")
    masks.add_argument("tokenizer", type=Path)
    masks.add_argument("--backend", default="xgrammar")
    masks.add_argument("--repeats", type=int, default=20)
    steps = commands.add_parser("steps")
    steps.add_argument("model", type=Path)
    steps.add_argument("--requests", type=int, default=32)
    steps.add_argument("--tokens", type=int, default=48)
    steps.add_argument("--repeats", type=int, default=3)
    options = vars(parser.parse_args())
    command = {"masks": measure_masks, "steps": measure_steps}[options.pop("command")]
    print(json.dumps(command(**options), indent=2))


def measure_masks(tokenizer: Path, backend: str, repeats: int) -> dict[str, Any]:
    text = Tokenizer(tokenizers.Tokenizer.from_file(str(tokenizer)))
    vocab_size = text.vocab_size
    vocabulary = make_vocabulary(text, vocab_size, (), None)
    (spec,) = [
        spec
        for spec in PluginHost(load_entry_points=False).targets(GrammarBackendSpec)
        if spec.name == backend
    ]
    begun = time.perf_counter()
    compiler = spec.load()(vocabulary=vocabulary)
    result: dict[str, Any] = {
        "vocab_size": vocab_size,
        "setup_s": round(time.perf_counter() - begun, 3),
    }
    row = np.zeros(-(-vocab_size // 32), dtype=np.int32)
    everything: list[float] = []
    for name, (form, answer) in FORMS.items():
        begun = time.perf_counter()
        notation, grammar_text = to_notation(StructuredOutput(**form), max_whitespace=8)
        grammar = compiler.compile(notation, grammar_text)
        compile_ms = (time.perf_counter() - begun) * 1e3
        ids = text.encode(answer, add_special_tokens=False)
        runs_us: list[list[float]] = [[] for _ in ids]
        for _ in range(repeats):
            matcher = grammar.matcher()
            for position, token_id in enumerate(ids):
                begun = time.perf_counter()
                matcher.fill(row)
                runs_us[position].append((time.perf_counter() - begun) * 1e6)
                assert matcher.accept(token_id), (name, token_id)
            assert matcher.can_end
        # Of one position, the median: whatever else the machine does is no cost of a mask.
        fills_us = [statistics.median(run) for run in runs_us]
        everything += fills_us
        result[name] = {"compile_ms": round(compile_ms, 1), **spread(fills_us)}
    return {**result, "all": spread(everything)}


def spread(values_us: list[float]) -> dict[str, float]:
    """Mean and percentiles in microseconds."""
    ordered = sorted(values_us)
    return {
        "mean_us": round(statistics.fmean(ordered), 1),
        "p50_us": round(ordered[len(ordered) // 2], 1),
        "p99_us": round(ordered[int(len(ordered) * 0.99)], 1),
    }


def measure_steps(model: Path, requests: int, tokens: int, repeats: int) -> dict[str, Any]:
    form = {"structured": {"regex": "[a-zA-Z0-9 ,.]*"}, "ignore_eos": True}
    kinds: dict[str, dict[str, Any]] = {"free": {"ignore_eos": True}, "constrained": form}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    prompts = [f"Tell me of the number {n}." for n in range(requests)]
    with LLM(model, max_num_seqs=requests, prefix_caching=False) as llm:
        llm.generate(prompts, {"max_tokens": 4, **form}, progress=False)
        before = llm.metrics()
        for _ in range(repeats):
            for kind, fields in kinds.items():
                params = {"max_tokens": tokens, "temperature": 0, **fields}
                begun = time.perf_counter()
                llm.generate(prompts, params, progress=False)
                times[kind].append(time.perf_counter() - begun)
        after = llm.metrics()
    best = {kind: min(values) for kind, values in times.items()}
    num_rows = after.num_mask_rows - before.num_mask_rows
    return {
        "requests": requests,
        "step_ms": {kind: round(value / tokens * 1e3, 2) for kind, value in best.items()},
        "overhead": round(best["constrained"] / best["free"] - 1, 4),
        "mask_us_per_row": round((after.mask_fill_s - before.mask_fill_s) / num_rows * 1e6, 1),
    }


if __name__ == "__main__":
    main()
