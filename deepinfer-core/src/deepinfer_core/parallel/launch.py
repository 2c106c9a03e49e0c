"""`join_mesh`: meets the other ranks, over the collectives of this rank's device.

Starts no process: torchrun, Slurm, Ray or a test does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from deepinfer_core.errors import PlatformError
from deepinfer_core.parallel.mesh import Mesh

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from deepinfer_core.plugin_api import DeviceRuntime


def join_mesh(
    runtime: DeviceRuntime, *, rank: int, num_ranks: int, store: Store | None = None
) -> Mesh:
    """Be one of the ranks that compute a model together. Blocks until all are there.

    Args:
        runtime: of the device that this rank drives.
        store: where ranks find each other; None: as `MASTER_ADDR` and `MASTER_PORT` say.

    Raises:
        PlatformError: this torch lacks the collectives of the device.
    """
    backend = runtime.collectives_backend
    if not dist.is_backend_available(backend):
        raise PlatformError(
            f"wanted {backend} for ranks on {runtime.kind}, and this torch ({torch.__version__}) "
            "comes without; install a torch built for the device"
        )
    runtime.activate()
    device = torch.device(runtime.torch_device)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=num_ranks,
        # Connects at once, to this device, so that a recorded step never has to.
        device_id=None if device.type == "cpu" else device,
    )
    return Mesh(dist.group.WORLD)
