"""Facts about the machine that need no device library: memory that may be used, CPU features.

A container's own limits count, since memory beyond them kills the process. Knows no plugin.
"""

from __future__ import annotations

import platform
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
CPUINFO = Path("/proc/cpuinfo")

_INTERESTING = (
    "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni",
    "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "bf16", "i8mm", "sve", "sve2",
)  # fmt: skip
"""Instruction sets that make a difference to kernels, as Linux spells them."""


def memory_info(cgroup: Path = CGROUP) -> tuple[int, int]:
    """(free, total) bytes that this process may use.

    Free is what can be had without swapping, so pages of the file cache count as free.
    """
    memory = psutil.virtual_memory()
    free, total = memory.available, memory.total
    limit = _read_int(cgroup / "memory.max")
    if limit is not None and limit < total:
        used = (_read_int(cgroup / "memory.current") or 0) - _reclaimable_bytes(cgroup)
        free, total = min(free, max(limit - used, 0)), limit
    return free, total


def cpu_features(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Instruction sets of the CPU that matter to kernels; empty where they cannot be read."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    flags = {
        word
        for line in lines
        if line.partition(":")[0].strip().lower() in ("flags", "features")
        for word in line.partition(":")[2].split()
    }
    return frozenset(flags.intersection(_INTERESTING))


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """What the CPU calls itself."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _reclaimable_bytes(cgroup: Path) -> int:
    """File cache that the kernel drops before it refuses memory."""
    try:
        lines = (cgroup / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _read_int(path: Path) -> int | None:
    """The number in a file; None if there is no file, or no limit."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
