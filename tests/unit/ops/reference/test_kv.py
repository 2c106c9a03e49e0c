"""`kv.store` with the plan that the layers of a step share."""

import pytest
import torch
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.reference.kv import StorePlan, plan_store, store

BLOCK_SIZE = 4


def caches(between, dtype=torch.float32):
    """Key and value caches: of their own, in pages of three layers, in pages of any size."""
    block = (BLOCK_SIZE, 2, 8)
    if between is None:
        return torch.zeros(6, *block, dtype=dtype), torch.zeros(6, *block, dtype=dtype)
    if between == "layers":
        pool = torch.zeros(6, 3, *block, dtype=dtype)
        return pool[:, 1], pool[:, 2]
    pool = torch.zeros(6, 2 * 64 + 1, dtype=dtype)
    return pool[:, :64].view(6, *block), pool[:, 64:128].view(6, *block)


def plan_of(slots):
    """As the layers of a step get it."""
    empty = torch.empty(0, dtype=torch.int32)
    meta = AttentionMeta(empty, empty, empty, slots, empty, BLOCK_SIZE, [1], [1])
    return plan_store(None, meta)


@pytest.mark.parametrize("slots", [[5, 22, 11], [7, -1, 4, -1], [-1], []])
def test_one_plan_serves_layers_of_any_stride(slots):
    slots = torch.tensor(slots, dtype=torch.int32)
    plan = plan_of(slots)
    for between in ("layers", None, "odd", "layers"):
        k, v = torch.randn(len(slots), 2, 8), torch.randn(len(slots), 2, 8)
        planned, plain = caches(between), caches(between)
        store(k, v, *planned, slots, plan=plan)
        store(k, v, *plain, slots)
        for cache, expected, new in zip(planned, plain, (k, v), strict=True):
            assert torch.equal(cache, expected)
            rows = cache.flatten(0, 1)
            kept = slots >= 0
            assert torch.equal(rows[slots[kept].long()], new[kept])
            assert int((rows.abs().amax(dim=(1, 2)) > 0).sum()) == int(kept.sum())


def test_rows_are_worked_out_once():
    plan = StorePlan(torch.tensor([5, 22], dtype=torch.int32))
    assert plan.rows(4, 12).tolist() == [1 * 12 + 1, 5 * 12 + 2]
    assert plan.rows(4, 12) is plan.rows(4, 12)
    assert plan.rows(4, 4).tolist() == [5, 22]


def test_a_step_without_padding_masks_nothing_on_the_cpu():
    assert StorePlan(torch.tensor([5, 0], dtype=torch.int32)).keep is None
    keep = StorePlan(torch.tensor([5, -1], dtype=torch.int32)).keep
    assert keep is not None and keep.flatten().tolist() == [True, False]
    on_device = StorePlan(torch.empty(2, dtype=torch.int32, device="meta")).keep
    assert on_device is not None, "nobody asks a device what it holds"
