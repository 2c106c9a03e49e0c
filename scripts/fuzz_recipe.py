"""Fuzz deepinfer-recipe with hostile input, guided by coverage.

    python scripts/fuzz_recipe.py --minutes 60

Needs `atheris` beside the development tools. A child process fuzzes the instrumented package and
keeps what fails or is slow; the parent replays that without instrumentation, where a case may take
one second, and prints what fails again. `--target NAME` fuzzes one target, `--replay FILE` runs
one kept case and shows its failure. The targets are the tests of `tests/fuzz/recipe`.
"""

from __future__ import annotations

import argparse
import importlib
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests" / "fuzz" / "recipe"
KEPT = ROOT / "build" / "fuzz-recipe"
MAX_SECONDS = 1.0  # of CPU time for one case, as it is used
MAX_TRACED_SECONDS = 4.0  # the same under instrumentation
STUCK_SECONDS = 30.0
MAX_KEPT_ALIKE = 2
MAX_INPUT_BYTES = 8192
Target = Callable[[bytes], object]


class TooSlowError(Exception):
    """A case took more CPU time than any may."""


def load_targets() -> dict[str, Target]:
    sys.path.insert(0, str(TESTS))
    tests = vars(importlib.import_module("test_hostile_input"))
    return {
        name.removeprefix("test_"): test.hypothesis.fuzz_one_input
        for name, test in tests.items()
        if name.startswith("test_")
    }


def stop_stuck_case(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise TooSlowError(f"more than {STUCK_SECONDS:.0f} s")


def run_case(target: Target, data: bytes, max_seconds: float) -> None:
    """Run one case.

    Raises:
        TooSlowError: it took too long.
        Exception: whatever the case raised.
    """
    signal.setitimer(signal.ITIMER_VIRTUAL, STUCK_SECONDS)
    begin = time.thread_time()
    try:
        target(data)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    seconds = time.thread_time() - begin
    if seconds > max_seconds:
        raise TooSlowError(f"{seconds:.1f} s")


def place_of(error: BaseException) -> str:
    """Return the kind of an error and the last line of ours that it passed."""
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "recipe" in f.filename]
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} at {where}"


class Keeper:
    """The function that the fuzzer calls: the first byte picks the target."""

    def __init__(self, targets: dict[str, Target]) -> None:
        self._targets = list(targets.items())
        self._num_kept: dict[str, int] = {}

    def __call__(self, data: bytes) -> None:
        if not data:
            return
        name, target = self._targets[data[0] % len(self._targets)]
        try:
            run_case(target, data[1:], MAX_TRACED_SECONDS)
        except Exception as error:  # every failure is a finding, and fuzzing goes on
            place = f"{name}: {place_of(error)}"
            count = self._num_kept[place] = self._num_kept.get(place, 0) + 1
            if count <= MAX_KEPT_ALIKE:
                print(f"kept: {place}: {str(error)[:200]!r}", flush=True)
                stem = re.sub(r"\W+", "-", place)
                (KEPT / f"{name}.{stem}.{count}").write_bytes(data[1:])


def fuzz_here(names: list[str], seconds: int) -> NoReturn:
    """Fuzz in this process, which ends with it."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["deepinfer_recipe"]):
        targets = load_targets()
    arguments = [
        sys.argv[0], f"-max_total_time={seconds}", f"-max_len={MAX_INPUT_BYTES}", "-len_control=20",
        "-timeout=100000", "-rss_limit_mb=8192", "-print_final_stats=1", "-verbosity=1",
    ]  # fmt: skip
    atheris.Setup(arguments, Keeper({name: targets[name] for name in names}))
    atheris.Fuzz()
    sys.exit()


def replay(path: Path, targets: dict[str, Target]) -> str | None:
    """Return what is wrong with a kept case, None if nothing is without instrumentation."""
    try:
        run_case(targets[path.name.partition(".")[0]], path.read_bytes(), MAX_SECONDS)
    except Exception as error:  # as in Keeper
        return f"{place_of(error)}: {str(error)[:500]}"
    return None


def fuzz(names: list[str], minutes: float) -> int:
    """Fuzz in a child, replay what it kept, print figures and findings; return how many."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for old in KEPT.iterdir():
        old.unlink()
    command = [sys.executable, __file__, "--child", f"--minutes={minutes}"]
    command += [f"--target={name}" for name in names]
    child = subprocess.run(command, stdout=None, stderr=subprocess.PIPE, text=True, check=False)
    last = child.stderr.splitlines()[-12:]
    done = re.search(r"Done (\d+) runs? in (\d+) second", child.stderr)
    if done is None:
        print("the fuzzer itself ended early:", *last, sep="\n")
        return 1
    num_cases, seconds = map(int, done.groups())
    features = re.findall(r"cov: (\d+)", child.stderr)
    covered = f", {features[-1]} edges" if features else ""
    print(
        f"{num_cases} cases in {seconds} s: {num_cases / max(seconds, 1):.0f} per second{covered}"
    )
    targets = load_targets()
    wrong = {path: replay(path, targets) for path in sorted(KEPT.iterdir())}
    findings = {path: problem for path, problem in wrong.items() if problem is not None}
    for path, problem in findings.items():
        print(f"{path}: {problem}")
    print(f"{len(findings)} findings, {len(wrong) - len(findings)} kept cases pass when replayed")
    return len(findings)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz deepinfer-recipe.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--target", action="append", help="as often as needed; default: all")
    parser.add_argument("--replay", type=Path, help="run one kept case and show its failure")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGVTALRM, stop_stuck_case)
    if options.replay:
        targets = load_targets()
        targets[options.replay.name.partition(".")[0]](options.replay.read_bytes())
    elif options.child:
        fuzz_here(options.target, int(options.minutes * 60))
    else:
        names = options.target or list(load_targets())
        sys.exit(1 if fuzz(names, options.minutes) else 0)


if __name__ == "__main__":
    main()
