"""Decode steps never wait for the GPU but for one event: `python no_sync.py CONFIG_DIR`.

torch raises at every hidden wait (a copy to pageable memory, `.item()`, `.tolist()`, `nonzero`)
while its sync-debug mode is `error`. The event of `InFlight.result` is no such wait.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from deepinfer_core.bench.steps import decoding
from deepinfer_core.engine import Engine
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from dummy_engine import start_engine

BATCHES = (1, 8, 32)
NUM_STEPS = 16


def check_family(family: str) -> dict[str, Any]:
    """A tiny model, at each batch size."""
    found: dict[str, str] = {}
    with TemporaryDirectory() as directory:
        path = write_tiny_checkpoint(directory, family)
        for batch in BATCHES:
            # Few blocks: other processes want memory, too.
            engine = start_engine(path, num_blocks=1000).engine
            if wait := find_hidden_wait(engine, batch):
                found[str(batch)] = wait
    return {"passed": not found, "counts": {"steps": len(BATCHES) * NUM_STEPS}, "waits": found}


def find_hidden_wait(engine: Engine, batch: int, *, context: int = 64) -> str | None:
    """Where a decode step of so many requests waits for the device; None: nowhere.

    The engine is of no use after a wait was found: the step that waited has no result.
    """
    try:
        with decoding(engine, batch, context=context, num_steps=NUM_STEPS):
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                for _ in range(NUM_STEPS):
                    engine.advance()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    except RuntimeError:
        return traceback.format_exc()
    return None


def main() -> int:
    engine = start_engine(Path(sys.argv[1])).engine
    for batch in BATCHES:
        wait = find_hidden_wait(engine, batch)
        print(f"batch {batch}: {wait or f'no hidden wait in {NUM_STEPS} steps'}", flush=True)
        if wait:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
