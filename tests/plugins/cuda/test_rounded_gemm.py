"""Many rows are rounded; cuBLAS, for which a fake stands in, multiplies them where it can."""

import pytest
import torch
from deepinfer_core.ops.reference.quant import act

pytest.importorskip("triton")
from deepinfer_cuda.heuristics_coded import MIN_ROUNDED_ROWS
from deepinfer_cuda.kernels import rounded_gemm

SCHEME = "fp8_block128"


def round_groups(x, how, scales, q=None):
    codes, row_scales = act(x, SCHEME)
    scales.copy_(row_scales)
    if q is None:
        return codes
    q[: len(x)] = codes
    return q


def scaled_mm(a, b, scale_a, scale_b, out_dtype):
    """As torch's, with what it checks and cuBLAS demands of Hopper's scales of blocks."""
    (num_rows, size), num_outputs = a.shape, b.shape[1]
    assert num_rows % 4 == 0, "columns of scales lie at multiples of 16 bytes"
    assert b.stride() == (1, size)
    assert scale_a.shape == (num_rows, size // 128) and scale_a.stride() == (1, num_rows)
    assert scale_b.shape == (size // 128, -(-num_outputs // 128))
    assert scale_b.stride() == (1, size // 128) and size // 128 % 4 == 0
    rows = a.float() * scale_a.repeat_interleave(128, 1)
    blocks = scale_b.repeat_interleave(128, 0).repeat_interleave(128, 1)[:, :num_outputs]
    return (rows.nan_to_num() @ (b.float() * blocks)).to(out_dtype)


@pytest.fixture
def called(monkeypatch):
    """The ways that products went."""
    called = []

    def told(name, fn):
        return lambda *args, **kwargs: called.append(name) or fn(*args, **kwargs)

    monkeypatch.setattr(rounded_gemm, "_has_cublas", lambda device: True)
    monkeypatch.setattr(rounded_gemm, "round_groups", round_groups)
    monkeypatch.setattr(torch, "_scaled_mm", told("cublas", scaled_mm))
    few, many = told("few", lambda *args: None), told("triton", lambda *args: None)
    monkeypatch.setattr(rounded_gemm.coded_gemm, "coded", few)
    monkeypatch.setattr(rounded_gemm.scaled_gemm, "multiply", many)
    return called


def weight(num_outputs, size):
    codes = (torch.randn(num_outputs, size) * 32).to(torch.float8_e4m3fn)
    return codes, torch.rand(-(-num_outputs // 128), -(-size // 128)) * 1e-3 + 1e-4


@pytest.mark.parametrize("num_rows", [MIN_ROUNDED_ROWS, 65, 131])
def test_cublas_gets_what_it_wants(called, num_rows):
    codes, scales = weight(144, 512)
    x = torch.randn(num_rows, 600, dtype=torch.bfloat16)[:, :512]
    found = rounded_gemm.coded(x, codes, scales, SCHEME)
    q, row_scales = act(x, SCHEME)
    blocks = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:144]
    right = (q.float() * row_scales.repeat_interleave(128, 1)) @ (codes.float() * blocks).T
    assert called == ["cublas"]
    assert found.shape == (num_rows, 144) and found.is_contiguous()
    torch.testing.assert_close(found.float(), right, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("num_rows", "num_outputs", "size", "dtype", "bias"),
    [
        (64, 144, 384, torch.bfloat16, None),
        (64, 136, 512, torch.bfloat16, None),
        (64, 144, 512, torch.float16, None),
        (64, 144, 512, torch.bfloat16, torch.zeros(144)),
    ],
    ids=["scales are no multiple of 16 bytes", "outputs", "dtype", "bias"],
)
def test_triton_multiplies_what_cublas_does_not(called, num_rows, num_outputs, size, dtype, bias):
    codes, scales = weight(num_outputs, size)
    rounded_gemm.coded(torch.randn(num_rows, size, dtype=dtype), codes, scales, SCHEME, bias)
    assert called == ["triton"]


def test_what_cublas_refuses_once_it_is_not_asked_again(called, monkeypatch, caplog):
    def refuse(*args, **kwargs):
        called.append("asked")
        raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    monkeypatch.setattr(rounded_gemm, "_refused", set())
    x = torch.randn(64, 512, dtype=torch.bfloat16)
    for _ in range(2):
        rounded_gemm.coded(x, *weight(144, 512), SCHEME)
    assert called == ["asked", "triton", "triton"]
    assert "(144, 512)" in caplog.text


def test_other_errors_are_told(called, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "_scaled_mm", fail)
    with pytest.raises(RuntimeError, match="illegal memory"):
        rounded_gemm.coded(torch.randn(64, 512, dtype=torch.bfloat16), *weight(144, 512), SCHEME)


def test_few_rows_are_not_rounded(called):
    x = torch.randn(MIN_ROUNDED_ROWS - 1, 512, dtype=torch.bfloat16)
    rounded_gemm.coded(x, *weight(144, 512), SCHEME)
    assert called == ["few"]


def test_cublas_is_asked_only_on_a_gpu():
    assert not rounded_gemm._has_cublas(torch.device("cpu"))
