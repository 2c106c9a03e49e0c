"""An element's bits do not depend on where it lies."""

import pytest
import torch
from deepinfer_core.ops.reference.lanes import PIECE, elementwise

FUNCTIONS = {
    "exp": torch.exp_,
    "sigmoid": torch.sigmoid_,
    "silu": lambda x: torch.nn.functional.silu(x, inplace=True),
    "tanh": torch.tanh_,
}


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_do_not_depend_on_place(name, dtype, threads):
    function = FUNCTIONS[name]
    x = torch.randn(3 * PIECE + 77).to(dtype)
    whole = elementwise(function, x)
    for start, stop in ((0, 1), (5, 36), (1, 1000), (PIECE - 3, PIECE + 40), (77, len(x))):
        assert torch.equal(elementwise(function, x[start:stop]), whole[start:stop])


def test_copies_and_keeps_the_shape():
    x = torch.randn(6, 10)[:, ::3]
    before = x.clone()
    y = elementwise(torch.exp_, x)
    assert torch.equal(x, before)
    assert y.shape == x.shape and y.is_contiguous()
    torch.testing.assert_close(y, x.exp())


def test_nothing():
    assert elementwise(torch.exp_, torch.empty(0, 5)).shape == (0, 5)
