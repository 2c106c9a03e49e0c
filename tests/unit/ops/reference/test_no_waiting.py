"""References never wait for the device and build all they need on it.

On the meta device nothing has a value, so whoever asks for one raises; tensors left on the CPU
by mistake do not mix with it; and a copy to it that would wait on a real device is refused.
"""

from dataclasses import fields, replace

import pytest
import torch
from deepinfer_core.ops.builtin import reference_kernels
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.registry import op_name
from deepinfer_core.plugin_api import load_target
from deepinfer_core.testing.case import Maker, Sizes, flatten
from deepinfer_core.testing.cases import OP_CASES
from torch.overrides import TorchFunctionMode

WAITING = {"moe.experts", "moe.coded"}
"""The rows of each expert decide shapes, so these do wait; their comment says so."""


def to_meta(value):
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, AttentionMeta):
        moved = {
            field.name: to_meta(getattr(value, field.name))
            for field in fields(value)
            if isinstance(getattr(value, field.name), torch.Tensor)
        }
        return replace(value, **moved, plans={})
    return value


class NoBlockingCopies(TorchFunctionMode):
    """Refuses copies from host to device during which the host would wait for the device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.device.type == "meta":
            moves = func is torch.Tensor.to and args[0].device.type == "cpu"
            assert func is not torch.tensor, "made from a list on the device"
            assert not moves or kwargs.get("non_blocking"), "a copy that waits"
        return result


KERNELS = [
    pytest.param(kernel, id=f"{op_name(kernel.op)}-{kernel.provider}")
    for kernel in reference_kernels()
    if op_name(kernel.op) not in WAITING and not kernel.op.startswith("sample.")
]


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_values(kernel):
    fn = load_target(kernel.target)
    for case in OP_CASES[op_name(kernel.op)].make(Sizes({})):
        call = case.build(Maker(torch.bfloat16), max(case.token_counts))
        expected = flatten(fn(**call.kwargs))
        on_meta = {name: to_meta(value) for name, value in call.kwargs.items()}
        with NoBlockingCopies():
            if kernel.plan and "meta" in on_meta:
                on_meta["plan"] = load_target(kernel.plan)(None, on_meta["meta"])
            found = flatten(fn(**on_meta))
        for a, b in zip(found, expected, strict=True):
            assert (a.device.type, a.shape, a.dtype) == ("meta", b.shape, b.dtype)
