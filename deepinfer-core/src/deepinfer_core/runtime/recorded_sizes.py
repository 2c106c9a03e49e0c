"""`RecordedSizes`: which sizes of steps earlier runs recorded, so that the next start can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepinfer_core.hint_file import HintFile


class RecordedSizes:
    """The sizes of one setup.

    Args:
        cache_dir: as in `device.cache_dir`.
        setup: whatever changes what is recorded, such as versions, model and kernels.
    """

    def __init__(self, cache_dir: str | None, setup: Mapping[str, Any]) -> None:
        self._file = HintFile(cache_dir, "recorded", setup)
        self._sizes: set[int] = self._read()

    @property
    def sizes(self) -> list[int]:
        """The largest first: memory that it needs serves smaller ones, too."""
        return sorted(self._sizes, reverse=True)

    def add(self, size: int) -> None:
        """Remember one more."""
        if size not in self._sizes:
            # Another process may have added some since.
            self._sizes = {*self._sizes, *self._read(), size}
            self._file.write(sorted(self._sizes))

    def _read(self) -> set[int]:
        sizes = self._file.read()
        return {n for n in sizes if isinstance(n, int)} if isinstance(sizes, list) else set()
