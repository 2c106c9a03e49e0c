"""Compare this plugin with an installed torch_npu, on a machine without an NPU.

    python stub_libraries.py stubs
    LD_LIBRARY_PATH=stubs python check_wheel.py [report.json]

Two things: that the wheel declares the operators as `schemas.txt` says, and that every kernel
in every conformance case calls them so that the wheel's own shape functions give what the
emulation gives, on tensors of a device that is made up. Nothing is computed. Exits with 1 if
anything differs.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch_npu  # noqa: E402
from deepinfer_ascend.emulation import registry  # noqa: E402
from deepinfer_ascend.soc import SOCS  # noqa: E402
from deepinfer_core.ops import rows  # noqa: E402
from deepinfer_core.ops.meta import AttentionMeta  # noqa: E402
from deepinfer_core.testing.case import flatten  # noqa: E402
from deepinfer_core.testing.checks import claimed_cases  # noqa: E402
from deepinfer_core.testing.subject import Subject, find_subject  # noqa: E402
from deepinfer_core.testing.trial import RefusedError, Trial, run  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

PLUGIN = "deepinfer_ascend.emulation.plugin"
DEVICE = "npu:0"
NUM_TOKENS = 7


def changed_schemas() -> dict[str, str]:
    """Operator -> what the wheel declares, where that is not what the snapshot says."""
    changed = {}
    for name, wanted in registry.read_schemas().items():
        operator = getattr(torch.ops.npu, name, None)
        found = str(operator.default._schema).removeprefix("npu::") if operator else "nothing"
        if found != wanted:
            changed[name] = found
    return changed


def without_shapes() -> list[str]:
    """Operators whose wheel has no shape function: what calls them cannot be compared."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return sorted(name for name in registry.read_schemas() if not has(f"npu::{name}", "Meta"))


def compare_kernels(subject: Subject) -> Iterator[tuple[str, str]]:
    """Each claim's case, and what differs in it; empty where nothing does."""
    for kernel in subject.kernels:
        for dtype in kernel.caps.dtypes:
            for case in claimed_cases(kernel, dtype):
                name = f"{subject.device.arch} {kernel.op} {kernel.provider} {dtype} {case.name}"
                try:
                    yield name, compare(Trial(subject, kernel, case, dtype))
                except RefusedError:
                    continue
                # A border: what a shape function raises is the finding.
                except Exception as error:
                    yield name, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def compare(trial: Trial) -> str:
    """What differs between shapes on the device that is made up, and those of the emulation."""
    bound = trial.bind()
    expected = flatten(run(bound, trial.call(NUM_TOKENS).kwargs, is_prepared=False))
    kwargs = trial.call(NUM_TOKENS).kwargs
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        mock.patch.object(rows, "to_device", put_numbers),
    ):
        found = flatten(run(bound, on_device(kwargs), is_prepared=False))
    shapes = [(tuple(part.shape), part.dtype) for part in expected]
    others = [(tuple(part.shape), part.dtype) for part in found]
    return "" if shapes == others else f"{others} instead of {shapes}"


def on_device(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the same shapes and strides on the device; under a fake mode."""
    moved = dict(kwargs)
    for name, value in kwargs.items():
        if isinstance(value, Tensor):
            moved[name] = like(value)
        elif isinstance(value, AttentionMeta):
            tensors = {
                field.name: like(getattr(value, field.name))
                for field in fields(value)
                if isinstance(getattr(value, field.name), Tensor)
            }
            moved[name] = replace(value, **tensors, plans={})
    return moved


def like(value: Tensor) -> Tensor:
    """With as much memory before and behind it, since views into pages reach beyond their own."""
    size = value.untyped_storage().nbytes() // value.element_size()
    pool = torch.empty(size, dtype=value.dtype, device=DEVICE)
    return pool.as_strided(value.shape, value.stride(), value.storage_offset())


def put_numbers(values: Any, device: Any) -> Tensor:
    """In the place of core's own, which takes tensors that have numbers in them."""
    return torch.empty(len(values), dtype=torch.int64, device=device)


def main(path: Path | None) -> int:
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "torch_npu": torch_npu.__version__,
        "changed_schemas": changed_schemas(),
        "without_shapes": without_shapes(),
        "cases": {},
        "differences": {},
    }
    for soc in SOCS:
        outcomes = dict(compare_kernels(find_subject(f"{PLUGIN}:on_{soc.arch}")))
        report["cases"][soc.arch] = dict(Counter(name.split()[1] for name in outcomes))
        report["differences"] |= {name: text for name, text in outcomes.items() if text}
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))
    return 1 if report["changed_schemas"] or report["differences"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
