"""An engine outlives real shortage of memory: in a step, and before the first one."""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deepinfer_cuda.plugin
import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import Engine
from deepinfer_core.errors import OutOfDeviceMemoryError
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.tiny import write_tiny_checkpoint

PROMPT_LENGTHS = (400, 300, 200, 100)
LEFT_BYTES = (16 << 20, 8 << 20, 4 << 20)
"""That torch may still take for a step; less and less, until one is cut short."""
WIDE: dict[str, Any] = {"vocab_size": 4096, "intermediate_size": 16384}
"""So that a step takes tens of megabytes."""


def run_out_of_memory() -> dict[str, Any]:
    """Steps that were taken back, and whether all tokens are those of a run with enough memory."""
    with TemporaryDirectory() as directory:
        path = write_tiny_checkpoint(directory, "llama", **WIDE)
        engine = start(path)
        expected = generate(engine)
        noted = Noted()
        logging.getLogger("deepinfer_core.engine").addHandler(noted)
        for left_bytes in LEFT_BYTES:
            with LittleMemory(left_bytes):
                found = generate(engine)
            engine.check_integrity()
            if noted.messages:
                break
        logging.getLogger("deepinfer_core.engine").removeHandler(noted)
        passed = bool(noted.messages) and found == expected and generate(engine) == expected
        return {
            "passed": passed,
            "counts": {"steps taken back": len(noted.messages)},
            "left_bytes": left_bytes,
            "first": noted.messages[0] if noted.messages else None,
            "refused_at_start": refused_at_start(path),
        }


def refused_at_start(path: Path) -> str:
    """What a start says when the cache is larger than the device."""
    try:
        start(path, num_blocks=2**26)
    except OutOfDeviceMemoryError as error:
        return str(error)
    return "nothing"


def start(path: Path, **fields: Any) -> Engine:
    host = PluginHost(load_entry_points=False)
    host.register(deepinfer_cuda.plugin, name="cuda")
    flags = {"dtype": "float32", "num_blocks": 400, "prefix_caching": False, **fields}
    return Engine.from_config(EngineConfig.from_flat(str(path), kind="cuda", **flags), host)


def generate(engine: Engine) -> list[tuple[list[int], str | None]]:
    """Tokens and finish reason of each prompt."""
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    generator = torch.Generator().manual_seed(1)
    requests = [
        request
        for length in PROMPT_LENGTHS
        for request in engine.add(
            torch.randint(3, 4000, (length,), generator=generator).tolist(), params
        )
    ]
    while engine.has_unfinished:
        engine.advance()
    return [(request.output_token_ids, request.finish_reason) for request in requests]


class LittleMemory:
    """Within, torch may take only so many bytes more than it has allocated."""

    def __init__(self, left_bytes: int) -> None:
        self._left_bytes = left_bytes

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        _, total = torch.cuda.mem_get_info()
        most = torch.cuda.memory_reserved() + self._left_bytes
        torch.cuda.set_per_process_memory_fraction(most / total)

    def __exit__(self, *exception: object) -> None:
        torch.cuda.set_per_process_memory_fraction(1.0)


class Noted(logging.Handler):
    """Keeps what is logged as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
