"""Which NPUs there are: device files and PCI ids, no library of the vendor and no context.

Devices count as the runtime of the vendor counts them: the device files of this host or container
in order, cut down to what `ASCEND_RT_VISIBLE_DEVICES` names.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from deepinfer_core.plugin_api import DeviceInfo, Reason

from deepinfer_ascend.soc import KIND, SOCS, Soc, find_soc

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
DEVICES = Path("/dev")
SHARED_FILES = ("davinci_manager", "devmm_svm", "hisi_hdc")
"""That a process opens besides those of its chips."""
PCI_DEVICES = Path("/sys/bus/pci/devices")
PCI_VENDOR = "0x19e5"
SMI_TIMEOUT_S = 10


def find_devices() -> list[DeviceInfo]:
    """Every NPU of a known generation that this process may use; none without a driver."""
    visible = _visible(_chips())
    soc = _generation() if visible and not _missing_files() else None
    if soc is None:
        return []
    return [
        DeviceInfo(kind=KIND, index=index, arch=soc.arch, features=soc.features)
        for index in range(len(visible))
    ]


def why_no_devices() -> list[Reason]:
    """Why `find_devices` finds none; empty where it finds some."""
    chips = _chips()
    if not chips:
        text = "there is no /dev/davinci*: "
        if _pci_generations():
            text += "the board is there, its driver is not; install it, or give the container "
            text += "--device /dev/davinci0 and what belongs to it"
        else:
            text += "no Ascend NPU on the PCI bus, or no driver in this container"
        return [Reason(text)]
    if missing := _missing_files():
        names = " ".join(f"--device /dev/{name}" for name in missing)
        return [Reason(f"there are NPUs, but this process lacks what they share: add {names}")]
    if not _visible(chips):
        hidden = f"{VISIBLE}={os.environ.get(VISIBLE)!r} hides all {len(chips)} NPUs"
        return [Reason(f"{hidden}; unset it, or name numbers below {len(chips)}")]
    if _generation() is None:
        known = ", ".join(soc.arch for soc in SOCS)
        return [Reason(f"these NPUs are of no generation that is known here: {known}")]
    return []


def _chips() -> list[int]:
    """Numbers of the device files of chips, in order."""
    numbers = (re.fullmatch(r"davinci(\d+)", path.name) for path in DEVICES.glob("davinci*"))
    return sorted(int(match[1]) for match in numbers if match)


def _missing_files() -> list[str]:
    return [name for name in SHARED_FILES if not (DEVICES / name).exists()]


def _visible(chips: list[int]) -> list[int]:
    """Those that the environment names, in its order; like the runtime it ends at a wrong entry."""
    names = os.environ.get(VISIBLE)
    if names is None:
        return chips
    chosen = []
    for name in filter(None, map(str.strip, names.split(","))):
        if not name.isdigit() or int(name) >= len(chips):
            break
        chosen.append(chips[int(name)])
    return chosen


def _generation() -> Soc | None:
    """Of all chips: boards of two generations do not share a host."""
    found = _pci_generations()
    return found[0] if found else _told_generation()


def _pci_generations() -> list[Soc]:
    by_id = {pci_id: soc for soc in SOCS for pci_id in soc.pci_ids}
    found = []
    for folder in sorted(PCI_DEVICES.glob("*")):
        if _read(folder / "vendor") == PCI_VENDOR and _read(folder / "device") in by_id:
            found.append(by_id[_read(folder / "device")])
    return found


def _told_generation() -> Soc | None:
    """As the vendor's tool names the chips, for containers that do not see the bus."""
    command = ("npu-smi", "info", "-m")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SMI_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # LAYOUT: NPU, chip and logical number, then the chip's name, which may begin with Ascend.
    rows = (re.match(r"\s*\d+\s+\d+\s+\d+\s+(.+)", line) for line in done.stdout.splitlines())
    socs = (find_soc(match[1]) for match in rows if match)
    return next((soc for soc in socs if soc is not None), None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
