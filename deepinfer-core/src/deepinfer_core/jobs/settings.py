"""What decides the results of a batch job besides its rows: the model and the settings that can
change a token. Sizes of batch and cache are not among them; they may differ between two runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError

_SAMPLE_BYTES = 65536
_FIELDS: dict[str, tuple[str, ...]] = {
    "model": ("revision", "dtype", "load_format", "max_model_len", "generation_config"),
    "device": ("kind", "kernels", "batch_invariant", "deterministic"),
}


def job_settings(config: EngineConfig, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that must stay the same for a job to be resumed, as plain JSON data.

    Args:
        defaults: sampling parameters for rows that do not give their own.
    """
    settings: dict[str, Any] = {"model.model": fingerprint(config.model.model)}
    for name in ("tokenizer", "chat_template"):
        path = getattr(config.model, name)
        settings[f"model.{name}"] = None if path is None else fingerprint(path)
    dumped = config.model_dump(mode="json")
    for section, names in _FIELDS.items():
        settings |= {f"{section}.{name}": dumped[section][name] for name in names}
    settings |= {f"sampling.{name}": value for name, value in sorted(defaults.items())}
    # As the journal gives it back: lists for tuples, text for keys.
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def hash_settings(settings: Mapping[str, Any]) -> bytes:
    """32 bytes that differ when any setting does."""
    text = json.dumps(settings, sort_keys=True)
    return blake2b(text.encode(), digest_size=32).digest()


def check_same_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Compare the settings of two runs of one job.

    Raises:
        ConfigError: names each setting that changed, with both values.
    """
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    if names:
        changes = "; ".join(f"{name}: {old.get(name)!r} -> {new.get(name)!r}" for name in names)
        raise ConfigError(
            f"the settings changed since this job began ({changes}); run it with the old ones, or "
            "start a new job with another output"
        )


def fingerprint(model: str) -> str:
    """Name and content of a file or directory in one line, without reading all of it.

    Size, head and tail of each file: enough to tell checkpoints apart, cheap for any size.
    """
    path = Path(model)
    if not path.exists():  # a hub id
        return model
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    digest = blake2b(digest_size=8)
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(_SAMPLE_BYTES))
            opened.seek(max(0, file.stat().st_size - _SAMPLE_BYTES))
            digest.update(opened.read(_SAMPLE_BYTES))
    return f"{path.resolve().name} {digest.hexdigest()}"
