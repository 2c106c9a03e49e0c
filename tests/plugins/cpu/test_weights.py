"""Where packed weights lie: apart from each other, in memory of large pages where there are any."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest
import torch

MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.fixture
def arenas(cpu_library):
    from deepinfer_cpu.weights import Arenas

    return Arenas()


def test_pieces_that_threads_take_do_not_overlap(arenas) -> None:
    taken: list[torch.Tensor] = []

    def take() -> None:
        for _ in range(200):
            taken.append(arenas.take((100,), torch.float32))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    starts = sorted(piece.data_ptr() for piece in taken)
    assert all(start % 64 == 0 for start in starts)
    assert min(b - a for a, b in itertools.pairwise(starts)) >= 400


@pytest.mark.skipif(
    not MODES.exists() or "[never]" in MODES.read_text(), reason="this system has no large pages"
)
def test_the_pages_are_large(arenas) -> None:
    piece = arenas.take((32 * 2**20,), torch.uint8).fill_(1)
    address, sizes = piece.data_ptr(), {}
    lines = Path("/proc/self/smaps").read_text().splitlines()
    inside = False
    for line in lines:
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(end, 16) for end in first.split("-"))
            inside = low <= address < high
        elif inside and first in ("AnonHugePages:", "Rss:"):
            sizes[first] = int(line.split()[1])
    assert sizes["AnonHugePages:"] > sizes["Rss:"] // 2
