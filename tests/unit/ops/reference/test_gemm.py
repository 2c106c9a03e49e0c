"""Every way that `linear` may take gives the product, contiguous."""

import pytest
import torch
from deepinfer_core.ops.reference import gemm
from deepinfer_core.testing.compare import assert_close


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 4, 5, 8, 33])
@pytest.mark.parametrize("sizes", [(96, 64), (57, 200)])
@pytest.mark.parametrize("biased", [False, True])
def test_all_shapes_and_dtypes(dtype, num_rows, sizes, biased):
    x, weight = torch.randn(num_rows, sizes[1]).to(dtype), torch.randn(sizes).to(dtype)
    bias = torch.randn(sizes[0]).to(dtype) if biased else None
    y = gemm.linear(x, weight, bias)
    expected = x.double() @ weight.double().T
    assert y.is_contiguous() and y.dtype == dtype
    assert_close(y, expected if bias is None else expected + bias.double(), "rounding", "y")


@pytest.mark.parametrize("num_rows", [3, 20])
def test_without_the_library_for_the_cpu(monkeypatch, num_rows):
    monkeypatch.setattr(gemm, "has_onednn", lambda: False)
    x, weight = torch.randn(num_rows, 64), torch.randn(96, 64)
    assert_close(gemm.linear(x, weight), x.double() @ weight.double().T, "rounding", "y")


@pytest.mark.parametrize("biased", [False, True])
def test_one_row_on_a_cpu_with_matrix_tiles(monkeypatch, biased):
    monkeypatch.setattr(gemm, "has_matrix_tiles", lambda: True)
    x, weight = (torch.randn(s).to(torch.bfloat16) for s in ((1, 64), (96, 64)))
    bias = torch.randn(96).to(torch.bfloat16) if biased else None
    y = gemm.linear(x, weight, bias)
    expected = x.double() @ weight.double().T
    assert_close(y, expected if bias is None else expected + bias.double(), "rounding", "y")


def test_unknown_schemes_are_named():
    with pytest.raises(ValueError, match=r"int3_hope.*known: int8_token"):
        gemm.scaled(*(torch.empty(1, 1),) * 4, "int3_hope", torch.float32)
