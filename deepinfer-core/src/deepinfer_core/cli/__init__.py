"""The command line: `deepinfer COMMAND ...`.

Owns which commands there are, and how errors and Ctrl-C become messages and exit codes. Only the
module of the command that was asked for is imported, so that help comes at once.
Exit codes: 0 done, 1 it failed, 2 the configuration or the command line is wrong, 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from deepinfer_core import __version__
from deepinfer_core.errors import ConfigError, DeepInferError
from deepinfer_core.plugins import PluginHost

COMMANDS: dict[str, tuple[str, str]] = {
    "generate": ("generate_cmd", "Continue prompts."),
    "chat": ("chat_cmd", "Talk with a model, in many turns or one."),
    "batch": ("batch_cmd", "Serve a JSONL file of prompts; resumable."),
    "score": ("score_cmd", "Log-likelihood of given continuations."),
    "verify": ("verify_cmd", "Check that every feature gives the plain run's tokens."),
    "bench": ("bench_cmd", "Measure latency and throughput, beside what the machine allows."),
    "convert": ("convert_cmd", "Write part of a checkpoint, or a tiny one, as a checkpoint."),
    "plugins": ("plugins_cmd", "List installed plugins, or check one."),
    "kernels": ("kernels_cmd", "Show which kernels serve a model, and why."),
    "doctor": ("doctor_cmd", "Look at what this machine has and lacks."),
    "config": ("config_cmd", "Show every setting and where it came from."),
}
"""Name -> module with `register(app)`, and the line that `deepinfer --help` shows."""

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Of a stream, which has no name; files are named in errors of our own."""

_OVERVIEW = """A small, readable inference engine for large language models.

Examples:

  deepinfer chat --model SmolLM2-135M-Instruct.Q4_1.gguf

  deepinfer generate --model ./Qwen3-0.6B "Once upon a time" --max-tokens 100 --stream

  deepinfer batch prompts.jsonl answers.jsonl --model ./Qwen3-0.6B

`deepinfer COMMAND --help` has more. Options for all commands stand before the command.
"""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        args: default: those of this process.
    """
    words = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in words[: _command_index(words)]
    try:
        command = typer.main.get_command(build_app(words))
        command.main(words, prog_name="deepinfer")
    except DeepInferError as error:
        if debug:
            traceback.print_exc()
        message = Text.assemble((type(error).__name__, "bold red"), f": {error}")
        Console(stderr=True, highlight=False).print(message, soft_wrap=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if debug or error.filename is not None or error.errno not in _CANNOT_WRITE:
            raise
        message = Text(f"standard output cannot be written: {error.strerror}; send it elsewhere")
        Console(stderr=True, highlight=False).print(message, soft_wrap=True)
        _discard_stdout()
        sys.exit(1)


def _discard_stdout() -> None:
    """What is still buffered would be tried, and fail, once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def build_app(words: Sequence[str]) -> typer.Typer:
    """The application as far as a command line needs it: one command's module, or all names."""
    app = typer.Typer(
        help=_OVERVIEW,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_common_options)
    index = _command_index(words)
    wanted = words[index] if index < len(words) else None
    for name, (module, summary) in COMMANDS.items():
        if name == wanted:
            importlib.import_module(f"{__name__}.{module}").register(app)
        else:
            app.command(name, help=summary)(_not_loaded)
    if wanted not in COMMANDS:
        _add_plugin_commands(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deepinfer {__version__}")
        raise typer.Exit


def _common_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say what is chosen and loaded.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    handler = RichHandler(console=Console(stderr=True), show_path=False, show_time=debug)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    logging.getLogger("deepinfer_core").setLevel(level)


def _command_index(words: Sequence[str]) -> int:
    """Where the command stands: behind the common options, all of which are flags."""
    return next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))


def _add_plugin_commands(app: typer.Typer) -> None:
    """Commands of plugins; imported as a whole, for only they know their own options."""
    for spec in PluginHost().commands():
        if spec.name in COMMANDS:
            typer.echo(f"command {spec.name} of a plugin is core's already; left out", err=True)
            continue
        target = spec.load()
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=spec.name, help=spec.help)
        else:
            app.command(spec.name, help=spec.help or None)(target)


def _not_loaded() -> None:
    """Stands for a command that was not asked for."""
