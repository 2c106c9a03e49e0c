"""A drafter's caches, and the rows of a block, are records where the target's caches are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deepinfer_core.models.layers.row_cache import RowCache
from deepinfer_core.ops.records import Record
from deepinfer_core.ops.reference.records import decode, encode
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.drafting import DraftRunner, load_with_drafter
from deepinfer_core.testing.tiny import TINY_DRAFTERS, write_tiny_checkpoint
from torch import nn

FORMATS = {
    "mtp_v32": ("656+132", {"656", "132"}),
    "mtp_v4": ("584+132", {"584"}),
    "dspark_v4": ("584+132", {"584"}),
    "dspark_v41": ("288+68", {"528"}),
}
"""What caches hold by their configuration, and what those of the drafter do."""
IDS = torch.randint(3, 275, (40,), generator=torch.Generator().manual_seed(1)).tolist()


def load(directory: Path, kv_format: str) -> DraftRunner:
    ops = reference_table(batch_invariant=True)
    target, drafter = load_with_drafter(directory, ops, kv_format=kv_format)
    return DraftRunner(target, drafter, num_lookahead_tokens=2)


def row_caches(module: nn.Module) -> list[RowCache]:
    """In the order of their layers."""
    found = [value for part in module.modules() for value in vars(part).values()]
    return [value for value in found if isinstance(value, RowCache)]


def round_rows(cache: RowCache, record: Record) -> None:
    """Let a cache of plain rows hold what a record would stand for."""

    def rounded(rows: torch.Tensor) -> torch.Tensor:
        return decode(encode(rows.reshape(-1, record.width), record), record)

    cache.pack = rounded  # type: ignore[method-assign]
    cache.round = lambda x: rounded(x).view(x.shape)  # type: ignore[method-assign]


@pytest.mark.parametrize("name", FORMATS)
def test_drafts_are_those_of_rounded_rows(name: str, tmp_path: Path) -> None:
    family, fields = TINY_DRAFTERS[name]
    directory = write_tiny_checkpoint(tmp_path, family, **fields)
    kv_format, held = FORMATS[name]
    records, plain = load(directory, kv_format), load(directory, "auto")
    assert {kv.record.name for kv in records.drafter.layer_kv()} == held
    _, before = plain.propose({0: IDS}, {0: 5}, 3)
    plain = load(directory, "auto")
    for module, other in ((records.target, plain.target), (records.drafter, plain.drafter)):
        for cache, without in zip(row_caches(module), row_caches(other), strict=True):
            if cache.record is not None:
                round_rows(without, cache.record)
    _, found = records.propose({0: IDS}, {0: 5}, 3)
    _, expected = plain.propose({0: IDS}, {0: 5}, 3)
    assert torch.equal(found[0].logits, expected[0].logits)
    assert not torch.equal(found[0].logits, before[0].logits)
