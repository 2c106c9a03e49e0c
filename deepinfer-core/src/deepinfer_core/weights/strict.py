"""Strict loading: what a model wants against what a checkpoint has, before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.weights.source import TensorEntry
from deepinfer_core.weights.stored import CODES, holds_codes

INTEGERS = ("I64", "I32")


def check_names(
    wanted: Mapping[str, Tensor],
    found: Mapping[str, TensorEntry],
    is_redundant: Callable[[str], bool],
    path: Path,
) -> list[str]:
    """Compare names, shapes and stored types.

    Args:
        wanted: checkpoint name -> where it goes; may be on the meta device.
        found: the checkpoint's tensors.
        is_redundant: which of the found ones may be ignored.
        path: of the checkpoint, for the message.

    Returns:
        the names to read, in the checkpoint's order.

    Raises:
        ModelLoadError: holds all missing, unexpected and mismatched names.
    """
    missing = wanted.keys() - found.keys()
    unexpected = [name for name in found.keys() - wanted.keys() if not is_redundant(name)]
    mismatched = []
    for name in wanted.keys() & found.keys():
        view, entry = wanted[name], found[name]
        if tuple(view.shape) != entry.shape or not _takes(view, entry):
            dtype = str(view.dtype).removeprefix("torch.")
            mismatched.append(
                f"{name}: wanted {list(view.shape)} {dtype}, "
                f"found {list(entry.shape)} {entry.dtype}"
            )
    if missing or unexpected or mismatched:
        raise ModelLoadError(
            f"{path}: the tensors do not fit the model of its configuration; "
            "is the checkpoint complete, and the configuration its own?",
            missing=sorted(missing),
            unexpected=unexpected,
            mismatched=mismatched,
        )
    return [name for name in found if name in wanted]


def _takes(view: Tensor, entry: TensorEntry) -> bool:
    """Whether a view can hold what is stored: codes as they are, or numbers."""
    if holds_codes(view):
        return entry.dtype in CODES[view.dtype]
    return entry.is_loadable if view.is_floating_point() else entry.dtype in INTEGERS
