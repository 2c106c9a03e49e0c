"""What a measurement depends on: the machine, the versions, and how fast memory can be read.

Knows no engine. Bandwidth is measured, never looked up, with the threads that kernels use.
"""

from __future__ import annotations

import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from deepinfer_core import __version__
from deepinfer_core.host_machine import cpu_features, cpu_name, memory_info

LARGE_BYTES = 2**30
"""More than the caches of any machine hold."""
_GIT_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that belong beside every number."""

    cpu: str
    cpu_features: list[str]
    num_threads: int
    """Of kernels on the CPU."""
    device: str
    system: str
    python: str
    torch: str
    deepinfer: str
    commit: str | None
    """Of the source tree, with `+changes` if it was edited; None for an installed package."""


def describe_machine(device: torch.device | str = "cpu") -> Machine:
    """Look at this process and its machine. Runs git, if the package lies in its tree."""
    return Machine(
        cpu=cpu_name(),
        cpu_features=sorted(cpu_features()),
        num_threads=torch.get_num_threads(),
        device=str(device),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        deepinfer=__version__,
        commit=source_commit(),
    )


def source_commit(directory: Path = Path(__file__).parent) -> str | None:
    """The commit of the working tree that a directory belongs to; None if there is none."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
        )
        return done.stdout.strip()

    try:
        # Ignored by git: an environment inside some other project's tree, not our source.
        if git("ls-files", "--", str(Path(__file__).name)) == "":
            return None
        is_changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/")
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if is_changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def read_bandwidth(
    num_bytes: int = LARGE_BYTES, *, device: torch.device | str = "cpu", repeats: int = 10
) -> float:
    """Bytes per second at which a buffer of this size is read, at best of some passes.

    The buffer is summed, which no device does slower than it reads. A buffer that fits the caches
    shows their speed: that is what a model of that size can hope for. Takes at most a quarter of
    the memory that is free. Blocks.
    """
    if torch.device(device).type == "cpu":
        num_bytes = min(num_bytes, memory_info()[0] // 4)
    buffer = torch.ones(max(num_bytes // 4, 1), dtype=torch.float32, device=device)
    best_s = float("inf")
    for _ in range(repeats):
        begun = time.perf_counter()
        buffer.sum().item()  # SYNC: the pass has ended only when its sum is here
        best_s = min(best_s, time.perf_counter() - begun)
    return buffer.nbytes / best_s
