"""An engine over random weights, for the scripts that measure: from a `config.json` alone."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deepinfer_cuda.plugin
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.plugins import PluginHost
from deepinfer_core.request import Request
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny_tokenizer import write_tokenizer

SPECIAL_IDS = 300
"""At the end of a vocabulary: kept out of prompts."""


def start_engine(directory: Path, **fields: Any) -> Engine:
    """Load what the directory's `config.json` describes, without prefix cache and real text."""
    host = PluginHost(load_entry_points=False)
    host.register(deepinfer_cuda.plugin, name="cuda")
    settings: dict[str, Any] = {
        "load_format": "dummy",
        "dtype": "bfloat16",
        "prefix_caching": False,
        "max_num_batched_tokens": 16384,
        "max_num_seqs": 256,
        "memory_fraction": 0.85,
    }
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(directory, copy, dirs_exist_ok=True)
        write_tokenizer(Path(copy))
        return Engine.from_config(EngineConfig.from_flat(copy, **(settings | fields)), host)


def start_decoding(engine: Engine, batch: int, *, context: int, num_steps: int) -> list[Request]:
    """Bring random prompts to where each gets a token in every step, for `num_steps` more."""
    ids = random.Random()
    params = SamplingParams(max_tokens=num_steps + 64, temperature=0, ignore_eos=True)
    most = max(11, engine.info.vocab_size - SPECIAL_IDS)
    requests = [
        request
        for _ in range(batch)
        for request in engine.add([ids.randrange(10, most) for _ in range(context)], params)
    ]
    while any(len(request.output_token_ids) < 4 for request in requests):
        engine.advance()
    return requests


def finish(engine: Engine, requests: Iterable[Request]) -> None:
    """End the requests and settle what is in flight."""
    for request in requests:
        engine.abort(request)
    while engine.has_unfinished:
        engine.advance()
