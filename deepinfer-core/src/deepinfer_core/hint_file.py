"""`HintFile`: what one start found out, so that the next one knows. Nothing depends on it.

Where it cannot be read or written, the next start finds out again.
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


class HintFile:
    """One small JSON file per setup.

    Args:
        cache_dir: as in `device.cache_dir`; made when there is something to write.
        name: what is in it.
        setup: whatever makes a hint worthless when it changes, such as versions: JSON values.
            Another setup has another file.
    """

    def __init__(self, cache_dir: str | None, name: str, setup: Mapping[str, Any]) -> None:
        self._name = name
        self._setup = json.loads(json.dumps(setup, sort_keys=True))
        digest = hashlib.sha256(json.dumps(self._setup).encode()).hexdigest()
        directory = default_directory() if cache_dir is None else Path(cache_dir)
        self.path = directory / f"{name}-{digest[:16]}.json"

    def read(self) -> Any:
        """What was written last; None: nothing, or nothing that can be read."""
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))[self._name]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.info("%s says nothing of %s: %s", self.path, self._name, error)
            return None

    def write(self, value: Any) -> None:
        """Replace what was written; another process sees the old file or the new one."""
        content = {self._name: value, "setup": self._setup}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=self.path.parent, suffix=".tmp", delete=False
            ) as file:
                json.dump(content, file, indent=2)
            os.replace(file.name, self.path)
        except OSError as error:
            logger.info("the next start will not know of %s: %s", self._name, error)


def default_directory() -> Path:
    """`deepinfer` where programs of this user keep what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "deepinfer"
