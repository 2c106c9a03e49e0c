"""Downloading a checkpoint by its hub id. Needs the extra `hub`."""

from __future__ import annotations

import re
from pathlib import Path

from deepinfer_core.errors import ModelLoadError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")


def is_hub_id(model: str) -> bool:
    """Whether the text has the form `owner/name`, and does not mean a file."""
    return HUB_ID.fullmatch(model) is not None and not model.endswith(".gguf")


def download_checkpoint(model: str, revision: str | None, *, with_weights: bool) -> Path:
    """Fetch a repository into the hub's own cache and give its directory. Blocks on the network.

    Args:
        with_weights: otherwise configuration and tokenizer only.

    Raises:
        ModelLoadError: the extra is not installed, or the hub says no; in its words.
    """
    try:
        import huggingface_hub  # optional: hub
    except ImportError:
        raise ModelLoadError(
            f"{model} is no local path; to fetch it from the hub, pip install 'deepinfer-core[hub]'"
        ) from None
    patterns = [p for p in PATTERNS if with_weights or p != "*.safetensors"]
    try:
        return Path(
            huggingface_hub.snapshot_download(model, revision=revision, allow_patterns=patterns)
        )
    except (OSError, ValueError) as error:  # hub and connection errors derive from these
        raise ModelLoadError(f"{model}: the hub gave no checkpoint: {error}") from error
