"""What each system on chip (SoC) can do: the one table that claims, checks and probe go by.

`arch` of a device is the name of its generation, which core compares piecewise:
910b < 910c < 950.
"""

from __future__ import annotations

from dataclasses import dataclass

KIND = "npu"
"""As torch names the device."""


@dataclass(frozen=True, slots=True)
class Soc:
    """One generation."""

    arch: str
    product: str
    """As the vendor's documents call it."""
    prefixes: tuple[str, ...]
    """How names of its chips begin, as driver and toolkit report them, in lower case."""
    pci_ids: tuple[str, ...]
    """Of its chips on the PCI bus, behind the vendor's own; none where none was seen."""
    features: frozenset[str]
    """What its operators can do that those of others cannot: products of `fp8` and `mx` codes,
    coefficients of hyper-connections (`mhc`), gating by `sqrtsoftplus` and by choices made
    beforehand, an indexer with `float32_weights`."""


SOCS = (
    Soc("910b", "Atlas A2", ("910b",), ("0xd802",), frozenset({"float32_weights"})),
    # 910C is two dies of 910B; its chips report as 910_93xx, and each die is a device.
    Soc("910c", "Atlas A3", ("910_93", "910c"), ("0xd803",), frozenset({"float32_weights"})),
    Soc(
        "950", "Ascend 950", ("950", "910_95"), (), frozenset({"fp8", "mx", "mhc", "sqrtsoftplus"})
    ),
)


def find_soc(name: str) -> Soc | None:
    """The generation of a chip by what driver or toolkit call it, such as `Ascend910B3`."""
    short = name.strip().lower().removeprefix("ascend").strip()
    return next((soc for soc in SOCS if short.startswith(soc.prefixes)), None)


def soc_of(arch: str) -> Soc:
    """The generation of this arch.

    Raises:
        KeyError: there is none.
    """
    return {soc.arch: soc for soc in SOCS}[arch]
