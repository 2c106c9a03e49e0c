"""Which collectives ranks meet over; that they compute the same see `test_ranks.py`."""

import pytest
import torch
from deepinfer_core.errors import PlatformError
from deepinfer_core.parallel import launch
from deepinfer_core.parallel.launch import join_mesh
from deepinfer_core.plugin_api import DeviceInfo
from deepinfer_core.runtime.device import CpuRuntime


class BoardRuntime(CpuRuntime):
    kind, torch_device, collectives_backend = "board", "meta:1", "board_collectives"

    def __init__(self):
        super().__init__(DeviceInfo("board", index=1))
        self.is_active = False

    def activate(self):
        self.is_active = True


@pytest.fixture
def met(monkeypatch):
    """How the process group was made."""
    made = {}

    def make(backend, **options):
        made.update(options, backend=backend)

    monkeypatch.setattr(launch.dist, "init_process_group", make)
    monkeypatch.setattr(launch.dist, "is_backend_available", lambda name: name != "absent")
    return made


def test_a_rank_meets_the_others_over_its_devices_collectives(met):
    runtime = BoardRuntime()
    join_mesh(runtime, rank=1, num_ranks=4)
    assert runtime.is_active
    assert met == {
        "backend": "board_collectives",
        "rank": 1,
        "world_size": 4,
        "store": None,
        "device_id": torch.device("meta:1"),
    }


def test_the_cpu_has_no_device_to_connect_to(met):
    join_mesh(CpuRuntime(DeviceInfo("cpu")), rank=0, num_ranks=2)
    assert (met["backend"], met["device_id"]) == ("gloo", None)


def test_a_torch_without_the_collectives_is_refused(met, monkeypatch):
    monkeypatch.setattr(BoardRuntime, "collectives_backend", "absent")
    with pytest.raises(PlatformError, match="wanted absent for ranks on board, and this torch"):
        join_mesh(BoardRuntime(), rank=0, num_ranks=2)
    assert met == {}
