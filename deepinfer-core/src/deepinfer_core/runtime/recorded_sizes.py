"""`RecordedSizes`: which sizes of steps earlier runs recorded, so that the next start can.

One small JSON file per setup. It is a hint: without it, or where it cannot be read or written,
sizes are recorded when they are first used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class RecordedSizes:
    """The file of one setup.

    Args:
        directory: made when there is something to write.
        setup: whatever changes what is recorded, such as versions, model and kernels: JSON
            values. Another setup has another file.
    """

    def __init__(self, directory: Path, setup: Mapping[str, Any]) -> None:
        self._setup = json.loads(json.dumps(setup, sort_keys=True))
        digest = hashlib.sha256(json.dumps(self._setup).encode()).hexdigest()
        self.path = directory / f"recorded-{digest[:16]}.json"
        self._sizes: set[int] = self._read()

    @property
    def sizes(self) -> list[int]:
        """The largest first: memory that it needs serves smaller ones, too."""
        return sorted(self._sizes, reverse=True)

    def add(self, size: int) -> None:
        """Remember one more."""
        if size in self._sizes:
            return
        # Another process may have added some since.
        self._sizes = {*self._sizes, *self._read(), size}
        content = {"sizes": sorted(self._sizes), "setup": self._setup}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=self.path.parent, suffix=".tmp", delete=False
            ) as file:
                json.dump(content, file, indent=2)
            os.replace(file.name, self.path)
        except OSError as error:
            logger.info("the next start will not know of steps of %d tokens: %s", size, error)

    def _read(self) -> set[int]:
        try:
            sizes = json.loads(self.path.read_text(encoding="utf-8"))["sizes"]
            return {size for size in sizes if isinstance(size, int)}
        except FileNotFoundError:
            return set()
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.info("%s says nothing of recorded steps: %s", self.path, error)
            return set()


def default_directory() -> Path:
    """`deepinfer` where programs of this user keep what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "deepinfer"
