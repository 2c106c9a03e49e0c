"""`KernelFailures`: kernels that do not compile on this device, and why.

They count as unable to serve, here and at the next start. Knows no kernel and no table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from deepinfer_core.hint_file import HintFile

logger = logging.getLogger(__name__)

MAX_REASON = 300
"""Characters of what a compiler says that are kept: its beginning and its end."""


class KernelFailures(Mapping[str, str]):
    """`plan_key` of a kernel and its problem -> why it cannot serve. At first empty."""

    def __init__(self) -> None:
        self._file: HintFile | None = None
        self._reasons: dict[str, str] = {}

    def remember(self, cache_dir: str | None, setup: Mapping[str, Any]) -> None:
        """Take in what earlier starts of the same setup found, and tell later ones.

        Args:
            cache_dir: as in `device.cache_dir`.
            setup: versions, device, plugins: whatever may let a kernel compile after all.
        """
        self._file = HintFile(cache_dir, "kernel-failures", setup)
        found = self._file.read()
        if isinstance(found, dict):
            self._reasons |= {key: str(reason) for key, reason in found.items()}

    def add(self, key: str, what: str) -> None:
        """Note what a compiler said."""
        words = " ".join(what.split())
        if len(words) > MAX_REASON:
            words = f"{words[: MAX_REASON // 3]} ... {words[-2 * MAX_REASON // 3 :]}"
        reason = f"does not compile on this device: {words}"
        if self._file is not None:
            # Another process may have found some since.
            found = self._file.read()
            self._reasons |= found if isinstance(found, dict) else {}
            reason += f" (remembered in {self._file.path}; delete it to try again)"
        self._reasons[key] = reason
        if self._file is not None:
            self._file.write(self._reasons)

    def __getitem__(self, key: str) -> str:
        return self._reasons[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reasons)

    def __len__(self) -> int:
        return len(self._reasons)
