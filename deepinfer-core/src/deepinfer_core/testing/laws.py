"""Laws that hold for any op: what a kernel may not do, whatever it computes.

Each law takes a trial and raises AssertionError. Those of the paged cache are in `cache_laws.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.ops.bound import BoundOp
from deepinfer_core.ops.meta import AttentionMeta
from deepinfer_core.ops.registry import op_name
from deepinfer_core.ops.table import reference_table
from deepinfer_core.plugin_api import load_target
from deepinfer_core.testing.case import Call, flatten
from deepinfer_core.testing.compare import assert_same_bits
from deepinfer_core.testing.trial import Trial, judge, run

BATCH = 70
"""Rows of the largest batch: over four tiles of 16, and not a multiple of any."""


def check_numerics(trial: Trial) -> None:
    """The outputs are the truth, and inputs are as they were; strided rows are fine.

    A kernel that prepares weights takes plain ones too.
    """
    bound = trial.bind()
    for strided in (False, True):
        for is_prepared in (True, False) if bound.prepare_fn else (True,):
            for seed, num_tokens in enumerate(trial.case.token_counts):
                call = trial.call(num_tokens, seed, strided=strided)
                _check_call(trial, bound, call, is_prepared=is_prepared)


def check_exact(trial: Trial) -> None:
    """A kernel of numerics `exact` has the bits of the reference."""
    bound, case = trial.bind(), trial.case
    reference = reference_table().bind(
        op_name(trial.kernel.op), dtype=trial.dtype, features=case.features, scheme=case.scheme
    )
    for num_tokens in case.token_counts:
        call, twin = trial.call(num_tokens), trial.call(num_tokens)
        outputs = call.observe(run(bound, call.kwargs))
        expected = twin.observe(run(reference, twin.kwargs))
        for number, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
            assert_same_bits(output, wanted, f"output {number}")


def check_empty(trial: Trial) -> None:
    """No tokens give no rows."""
    _check_call(trial, trial.bind(), trial.call(0))


def check_deterministic(trial: Trial) -> None:
    """The same inputs twice give the same bits, whatever lies in free memory."""
    bound = trial.bind()
    for num_tokens in trial.case.token_counts:
        call, twin = trial.call(num_tokens), trial.call(num_tokens)
        first = [output.clone() for output in call.observe(run(bound, call.kwargs))]
        # Memory that is freed now and likely to be handed out next holds something else.
        scribbles = [torch.full_like(output, 77) for output in first]
        del scribbles
        second = twin.observe(run(bound, twin.kwargs))
        for number, (a, b) in enumerate(zip(first, second, strict=True)):
            assert_same_bits(b, a, f"output {number}, second run")


def check_rows(trial: Trial, rows: Sequence[str]) -> None:
    """A row has the same bits alone, in any part of the batch, at any place in it."""
    bound, make = trial.bind(), trial.maker()
    kwargs = trial.case.build(make, BATCH).kwargs
    full = [output.clone() for output in flatten(run(bound, _take(kwargs, rows, None)))]
    shuffled = make.permutation(BATCH)
    picks = [shuffled, shuffled[:33], *(torch.tensor([t]) for t in (0, 1, 37, BATCH - 1))]
    picks += [torch.arange(first, last) for first, last in ((0, 2), (0, 16), (5, 22), (3, BATCH))]
    for pick in picks:
        pick = pick.to(make.device)
        part = flatten(run(bound, _take(kwargs, rows, pick)))
        for number, (some, whole) in enumerate(zip(part, full, strict=True)):
            what = f"output {number} of rows {pick.tolist()[:8]} of {BATCH}"
            assert_same_bits(some, _pick_rows(whole, pick), what)


def check_item_by_item(trial: Trial) -> None:
    """An op that writes in place leaves the same bits when called item by item."""
    bound, num_items = trial.bind(), max(trial.case.token_counts)
    call, twin = trial.call(num_items), trial.call(num_items)
    per_item = [
        name
        for name, value in twin.kwargs.items()
        if name not in call.writes and isinstance(value, Tensor) and value.shape[0] == num_items
    ]
    run(bound, call.kwargs)
    for item in range(num_items):
        parts = {name: twin.kwargs[name][item : item + 1] for name in per_item}
        run(bound, {**twin.kwargs, **parts})
    for name in sorted(call.writes):
        assert_same_bits(twin.kwargs[name], call.kwargs[name], f"{name}, item by item")


def check_replay(trial: Trial) -> None:
    """Launched again over the same memory with other contents, it computes anew."""
    bound, runtime = trial.bind(), trial.subject.runtime
    num_tokens = max(trial.case.token_counts)
    call, other = trial.call(num_tokens), trial.call(num_tokens, seed=1)
    result: list[Any] = []

    def launch() -> None:
        result[:] = [run(bound, call.kwargs)]

    launch()
    graph = runtime.capture(launch) if runtime.supports_graphs else None
    _overwrite(call.kwargs, other.kwargs)
    if graph is None:
        launch()
    else:
        graph.replay()
        runtime.synchronize()
    judge(call.observe(result[0]), trial.numerics, other)


def check_fake(trial: Trial) -> None:
    """The shape function gives the shapes and dtypes of the kernel."""
    bound = trial.bind()
    fake = load_target(str(trial.kernel.fake))
    for num_tokens in trial.case.token_counts:
        kwargs = trial.call(num_tokens).kwargs
        on_meta = {
            name: value.to("meta") if isinstance(value, Tensor) else value
            for name, value in kwargs.items()
        }
        expected, shown = flatten(run(bound, kwargs)), flatten(fake(**on_meta))
        assert len(shown) == len(expected), f"fake: {len(shown)} outputs, not {len(expected)}"
        for number, (a, b) in enumerate(zip(shown, expected, strict=True)):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), (
                f"fake output {number}: {tuple(a.shape)} {a.dtype}, "
                f"the kernel gives {tuple(b.shape)} {b.dtype}"
            )


def _check_call(trial: Trial, bound: BoundOp, call: Call, *, is_prepared: bool = True) -> None:
    before = {
        name: value.clone()
        for name, value in call.kwargs.items()
        if isinstance(value, Tensor) and name not in call.writes
    }
    outputs = call.observe(run(bound, call.kwargs, is_prepared=is_prepared))
    for name, value in before.items():
        assert_same_bits(call.kwargs[name], value, f"input {name} was modified")
    judge(outputs, trial.numerics, call)


def _take(kwargs: Mapping[str, Any], rows: Sequence[str], pick: Tensor | None) -> dict[str, Any]:
    """Arguments with some rows only; copies, since ops may write into them."""
    taken = dict(kwargs)
    for name in rows:
        value = kwargs.get(name)
        if value is not None:
            taken[name] = value.clone() if pick is None else _pick_rows(value, pick)
    return taken


def _pick_rows(value: Tensor, pick: Tensor) -> Tensor:
    if value.element_size() == 1:  # Torch cannot index every 8-bit dtype.
        return value.view(torch.uint8)[pick].view(value.dtype)
    return value[pick]


def _overwrite(kwargs: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    for name, value in kwargs.items():
        if isinstance(value, Tensor):
            value.copy_(other[name])
        elif isinstance(value, AttentionMeta):
            for field in ("cu_seqlens_q", "seq_lens", "block_tables", "slot_mapping", "positions"):
                getattr(value, field).copy_(getattr(other[name], field))
