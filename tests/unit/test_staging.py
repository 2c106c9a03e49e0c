"""Integers reach the device as they are, whatever their order, shape and number."""

import numpy as np
import pytest
import torch
from deepinfer_core.staging import pack, stage, to_device, unpack

LONGS = [np.arange(3), np.arange(8) * 2**40, np.zeros(0, dtype=np.int64), np.arange(1) + 7]
INTS = [np.arange(5, dtype=np.int32), np.arange(6)[::2], np.arange(12).reshape(3, 4)[:, :2]]


def packed(longs, ints):
    return unpack(pack(longs, ints, pin_memory=False), longs, ints)


def direct(longs, ints):
    return stage(longs, ints, torch.device("cpu"))


@pytest.mark.parametrize("way", [packed, direct])
@pytest.mark.parametrize(("longs", "ints"), [(LONGS, INTS), (LONGS[:1], []), ([], INTS)])
def test_arrays_arrive_as_tensors_of_the_same_content(way, longs, ints):
    staged_longs, staged_ints = way(longs, ints)
    assert [t.tolist() for t in staged_longs] == [array.tolist() for array in longs]
    assert [t.tolist() for t in staged_ints] == [array.tolist() for array in ints]
    assert {t.dtype for t in staged_longs} <= {torch.int64}
    assert {t.dtype for t in staged_ints} <= {torch.int32}


def test_every_packed_array_begins_at_16_bytes():
    """Kernels that specialise on alignment must not see another one in every step."""
    buffer = pack(LONGS, INTS, pin_memory=False)
    staged_longs, staged_ints = unpack(buffer, LONGS, INTS)
    for tensor in (*staged_longs, *staged_ints):
        assert (tensor.data_ptr() - buffer.data_ptr()) % 16 == 0


def test_lists_become_int64_of_their_shape():
    tensor = to_device([(1, 2), (3, 4)], torch.device("cpu"))
    assert tensor.dtype == torch.int64
    assert tensor.tolist() == [[1, 2], [3, 4]]
    assert to_device([], torch.device("cpu")).shape == (0,)
