"""How a plugin behaves before any kernel runs: imports, probe, versions, signatures."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from deepinfer_core.ops.registry import needs_adapter, op_major
from deepinfer_core.ops.spec import UNIVERSAL_FEATURES
from deepinfer_core.plugin_api import FEATURES, KernelSpec, load_target
from deepinfer_core.testing.subject import load_plugin, spec_of

MAX_IMPORT_S = 1.0
TIMEOUT_S = 120

# Two processes: a fresh one, and one that it spawns as an engine spawns its workers.
_LOOK_TWICE = """
import json, multiprocessing, sys
from deepinfer_core.testing.hygiene import look
with multiprocessing.get_context("spawn").Pool(1) as pool:
    child = pool.apply(look, (sys.argv[1],))
print(json.dumps([look(sys.argv[1]), child]))
"""


def look(name: str) -> dict[str, Any]:
    """Load a plugin, probe with it, and say what this process saw. For fresh processes."""
    host, record = load_plugin(name)
    host.devices()
    return {
        "import_s": record.import_s,
        "devices": [
            {**asdict(device), "features": sorted(device.features)} for device in record.devices
        ],
        "has_context": _has_device_context(),
    }


def check_process(name: str) -> None:
    """Import is quick, the probe neither raises nor touches a device, and spawn sees the same."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    finished = subprocess.run(
        [sys.executable, "-c", _LOOK_TWICE, name],
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == 0, (
        f"loading and probing in a fresh process failed: {_last_line(finished.stderr)}"
    )
    parent, child = json.loads(finished.stdout.splitlines()[-1])
    quickest = min(parent["import_s"], child["import_s"])
    assert quickest <= MAX_IMPORT_S, (
        f"import took {quickest:.1f} s, more than {MAX_IMPORT_S} s; the entry module should only "
        "list what the plugin has"
    )
    assert not parent["has_context"], "the probe created a device context"
    assert parent["devices"] == child["devices"], (
        f"a spawned process found {child['devices']}, its parent {parent['devices']}"
    )


def check_kernel(kernel: KernelSpec) -> None:
    """The kernel exists, takes what the op takes, and claims what there is."""
    spec = spec_of(kernel)
    # `bias` and the like mean something only to ops that name them.
    unknown = kernel.caps.features - FEATURES
    assert not unknown, f"claims unknown features {sorted(unknown)}"
    foreign = kernel.caps.features - spec.features - UNIVERSAL_FEATURES
    assert not foreign, f"claims features that {spec.name} does not have: {sorted(foreign)}"
    served = {spec.major} | ({spec.major - 1} if spec.previous else set())
    assert op_major(kernel.op) in served, f"claims {kernel.op}, core serves {sorted(served)}"
    if kernel.prepare is not None:
        assert spec.weight, f"prepares a weight, but {spec.name} has none"
    for target in (kernel.plan, kernel.prepare, kernel.fake):
        if target is not None:
            load_target(target)
    fn = load_target(kernel.target)
    if not needs_adapter(kernel, spec):
        found, wanted = _parameters(inspect.signature(fn)), _parameters(spec.signature)
        assert found == wanted, f"takes {found}, the op {spec.name} takes {wanted}"


def _parameters(signature: inspect.Signature) -> Mapping[str, object]:
    """Names and defaults, in order."""
    return {
        name: "required" if parameter.default is parameter.empty else parameter.default
        for name, parameter in signature.parameters.items()
    }


def _has_device_context() -> bool:
    if "torch" not in sys.modules:
        return False
    torch = importlib.import_module("torch")
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return False
    backend = getattr(torch, accelerator.type, None)
    return bool(backend is not None and backend.is_initialized())


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"
