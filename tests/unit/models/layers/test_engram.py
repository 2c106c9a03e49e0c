"""The layer of the n-gram memory."""

from __future__ import annotations

from typing import Any

import torch
from deepinfer_core.models.deepseek_v41 import DeepseekV41
from deepinfer_core.models.layers.engram import Engram
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.tiny import tiny_config
from torch.overrides import TorchFunctionMode


class CopiesFromHost(TorchFunctionMode):
    """Notes what brings numbers of the host to the meta device, and whether it waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.device.type == "meta":
            if func is torch.tensor:
                self.waiting.append(True)
            elif func is torch.Tensor.to and args[0].device.type == "cpu":
                self.waiting.append(not kwargs.get("non_blocking"))
        return result


def test_the_constants_of_hashes_reach_the_device_once_and_without_waiting() -> None:
    config = DeepseekV41.read_config(RawConfig(tiny_config("deepseek_v41"), "config.json"))
    with torch.device("meta"):
        engram = Engram(reference_table(), config, 3, dtype="float32")
        streams = torch.empty(5, config.hyper.num_streams, config.hidden_size)
        classes = torch.empty(5, 4, dtype=torch.int64)
    with CopiesFromHost() as copies:
        assert engram(streams, classes, None).shape == streams.shape
        assert copies.waiting == [False, False]
        engram(streams, classes, None)
        assert len(copies.waiting) == 2
