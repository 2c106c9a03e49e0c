"""`deepinfer convert`: part of a checkpoint, or a tiny random one, as a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepinfer_core.cli.options import JsonOption
from deepinfer_core.cli.render import print_json
from deepinfer_core.errors import ConfigError
from deepinfer_core.observe.progress import progress_bar
from deepinfer_core.plugin_api import load_target
from deepinfer_core.weights.cut_config import Cut, plan_cut

if TYPE_CHECKING:
    from deepinfer_core.weights.truncate import Written

# Reading and writing tensors needs torch, which takes seconds to import.
TRUNCATE = "deepinfer_core.weights.truncate:truncate_checkpoint"
SYNTHESIZE = "deepinfer_core.models.synthetic:write_synthetic_checkpoint"
WRITE_TINY = "deepinfer_core.testing.tiny:write_tiny_checkpoint"
MAKE_DESTINATION = "deepinfer_core.weights.truncate:make_destination"
DESCRIBE = "deepinfer_core.weights.truncate:describe_checkpoint"
FAMILIES = "deepinfer_core.testing.tiny:TINY_FAMILIES"


def register(app: typer.Typer) -> None:
    """Add `deepinfer convert`."""
    app.command("convert")(convert)


def convert(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="[SRC] DST", help="Directories; DST must be empty or not exist."),
    ],
    layers: Annotated[
        int | None, typer.Option(help="Keep the first N layers.", show_default=False)
    ] = None,
    experts: Annotated[
        int | None, typer.Option(help="Keep the first N routed experts.", show_default=False)
    ] = None,
    predictors: Annotated[
        bool, typer.Option("--predictors", help="Keep layers that predict further tokens.")
    ] = False,
    engrams: Annotated[
        bool, typer.Option(help="Keep n-gram memories, which may be most of the bytes.")
    ] = True,
    dummy_weights: Annotated[
        bool,
        typer.Option("--dummy-weights", help="SRC needs no weights: write random ones."),
    ] = False,
    tiny: Annotated[
        str | None,
        typer.Option(metavar="FAMILY", help="A tiny random model instead.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of a tiny model.", min=0)] = 0,
    quantize: Annotated[
        bool, typer.Option("--quantize", help="A tiny model in the codes of released files.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the first layers and experts of a checkpoint as a checkpoint, or a tiny one.

    Stored bytes are copied: quantised tensors stay quantised. The configuration is made to fit,
    tokenizer and generation settings are copied.

    Examples:

      deepinfer convert ./DeepSeek-V4-Flash ./v4-6l --layers 6 --experts 32

      deepinfer convert ./config-only ./v4-6l --layers 6 --dummy-weights

      deepinfer convert --tiny deepseek_v4 --quantize ./tiny-v4
    """
    if tiny is not None:
        _refuse("with --tiny", layers=layers, experts=experts, predictors=predictors)
        _refuse("with --tiny", no_engrams=not engrams, dummy_weights=dummy_weights)
        written = _write_tiny(paths, tiny, seed, quantize=quantize)
    else:
        _refuse("without --tiny", seed=seed or None, quantize=quantize)
        cut = partial(
            plan_cut,
            num_layers=layers,
            num_experts=experts,
            keeps_predictors=predictors,
            keeps_engrams=engrams,
        )
        written = _write_part(paths, cut, SYNTHESIZE if dummy_weights else TRUNCATE)
    _show(written, as_json=as_json)


def _refuse(when: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None and value is not False:
            field = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"means nothing {when}", field=field, value=value, allowed="leave it out"
            )


def _check_paths(paths: list[Path], count: int, allowed: str) -> list[Path]:
    if len(paths) != count:
        raise ConfigError(
            "not so many directories",
            field="paths",
            value=" ".join(map(str, paths)),
            allowed=allowed,
        )
    return paths


def _write_part(paths: list[Path], cut: Callable[..., Cut], target: str) -> Written:
    source, destination = _check_paths(paths, 2, "SRC DST, or --tiny FAMILY DST")
    with ExitStack() as stack:

        def start(num_bytes: int) -> Callable[[str, int], None]:
            advance = stack.enter_context(progress_bar("writing", num_bytes))
            return lambda name, size: advance(size, name)

        written: Written = load_target(target)(source, destination, cut, start)
    return written


def _write_tiny(paths: list[Path], family: str, seed: int, *, quantize: bool) -> Written:
    (destination,) = _check_paths(paths, 1, "DST, with --tiny")
    families = load_target(FAMILIES)
    if family not in families:
        raise ConfigError(
            "no such family", field="--tiny", value=family, allowed=", ".join(sorted(families))
        )
    load_target(MAKE_DESTINATION)(destination)
    load_target(WRITE_TINY)(destination, family, seed=seed, quantize=quantize)
    written: Written = load_target(DESCRIBE)(destination)
    return written


def _show(written: Written, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(written))
        return
    experts = "" if written.num_experts is None else f", {written.num_experts} experts"
    typer.echo(
        f"{written.path}: {written.num_layers} layers{experts}, {written.num_tensors:,} tensors, "
        f"{written.num_bytes / 1e9:,.3f} GB"
    )
