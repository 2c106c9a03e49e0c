"""Runs the plugin's kernels in Triton's interpreter, and prints what came out as JSON.

    TRITON_INTERPRET=1 python interpret.py

A program of its own: whether kernels are interpreted is decided when they are imported.
"""

import json
from dataclasses import replace

from deepinfer_core.testing.run import all_checks, run_check
from deepinfer_core.testing.subject import find_subject

DTYPES = ("float32", "float16")
"""Not bfloat16, which the interpreter cuts off instead of rounding it."""


def main():
    subject = find_subject("deepinfer_ascend.emulation.plugin:on_910b")
    kernels = [kernel for kernel in subject.kernels if kernel.provider == "ascend.triton"]
    checks = {}
    for check in all_checks(replace(subject, kernels=kernels), ("L1",)):
        # The richest case of each op comes last.
        if check.dtype in DTYPES:
            checks[check.op, check.dtype] = check
    results = {f"{op} {dtype}": run_check(check) for (op, dtype), check in checks.items()}
    print(json.dumps({name: [result.outcome, result.message] for name, result in results.items()}))


if __name__ == "__main__":
    main()
