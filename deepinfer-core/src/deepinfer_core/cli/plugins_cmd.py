"""`deepinfer plugins`: what is installed, what it brings, and what went wrong; and the check.

Imports no torch, so that it answers at once and also when torch is broken.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from deepinfer_core import __version__, builtin_plugin
from deepinfer_core.cli.doctor_checks import ask_everything
from deepinfer_core.errors import ConfigError, PluginError
from deepinfer_core.plugin_api import API_VERSION, DeviceInfo
from deepinfer_core.plugin_discovery import PluginRecord
from deepinfer_core.plugins import PluginHost

CONFORMANCE = "deepinfer_core.testing.conformance"

PluginOption = Annotated[
    list[str] | None,
    typer.Option("--plugin", "-p", help="Load only this plugin; repeatable. Its failure is fatal."),
]
BlockOption = Annotated[
    list[str] | None, typer.Option("--block", help="Do not load this plugin; repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

BUILTIN_NAMES = ("builtin", builtin_plugin.NAME, builtin_plugin.DISTRIBUTION)
"""Names under which the conformance suite checks core's own kernels."""


def register(app: typer.Typer) -> None:
    """Add `deepinfer plugins` and `deepinfer plugins check`."""
    plugins = typer.Typer(
        help="List installed plugins, their hooks and devices, and what went wrong.\n\n"
        "Examples:\n\n  deepinfer plugins\n\n  deepinfer plugins --json --block acme\n\n"
        "  deepinfer plugins check acme --report report.json"
    )
    plugins.callback(invoke_without_command=True)(list_plugins)
    plugins.command("check")(check_plugin)
    app.add_typer(plugins, name="plugins")


def list_plugins(
    context: typer.Context,
    plugin: PluginOption = None,
    block: BlockOption = None,
    as_json: JsonOption = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    host = PluginHost(allow=plugin or None, block=block or ())
    ask_everything(host)
    for record in host.plugins:
        if record.is_named and record.failure:
            raise record.failure
    described = [describe_plugin(record) for record in host.plugins]
    if as_json:
        answer = {"core": __version__, "api": API_VERSION, "plugins": described}
        typer.echo(json.dumps(answer, indent=2))
        return
    table = Table(title=f"deepinfer-core {__version__}, plugin API {API_VERSION}")
    for column in ("name", "distribution", "API", "hooks", "devices", "state"):
        table.add_column(column, overflow="fold")
    for record in host.plugins:
        table.add_row(
            record.name,
            f"{record.distribution} {record.version}",
            record.info.api if record.info else "?",
            ", ".join(hook.removeprefix("deepinfer_") for hook in record.hooks),
            ", ".join(describe_device(device) for device in record.devices),
            _state(record),
        )
    console = Console()
    console.print(table)
    for record in host.plugins:
        if record.failure:
            console.print(f"[red]failed[/red] {record.failure}", highlight=False)


def check_plugin(
    name: Annotated[
        str, typer.Argument(help="Entry point, distribution, or module.with.dots of the plugin.")
    ],
    report: Annotated[
        Path | None, typer.Option(help="Write the results as JSON to this file.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON, all else to stderr.")
    ] = False,
) -> None:
    """Run the conformance suite over everything that a plugin claims.

    `builtin` is core's own kernels. Exits with 1 if a claim does not hold.

    Examples:

      deepinfer plugins check example

      deepinfer plugins check acme --report report.json

      deepinfer plugins check builtin --json
    """
    if importlib.util.find_spec("pytest") is None:
        raise ConfigError("the check runs on pytest; pip install 'deepinfer-core[test]'")
    if name not in BUILTIN_NAMES and "." not in name:
        PluginHost(allow=[name])  # Say at once, and in one line, if it cannot be loaded.
    if report is not None:
        _check_writable(report)
    command = [sys.executable, "-m", "pytest", "--pyargs", CONFORMANCE, "--deepinfer-plugin", name]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "report.json" if report is None else report.absolute()
        if as_json or report is not None:
            command += ["--deepinfer-report", str(path)]
        ended = subprocess.run(command, check=False, stdout=sys.stderr if as_json else None)
        if as_json and path.exists():
            typer.echo(path.read_text(encoding="utf-8"))
    raise typer.Exit(ended.returncode)


def _check_writable(report: Path) -> None:
    """Told before minutes of checks, not after."""
    try:
        report.open("a").close()
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror}", field="--report", value=str(report)
        ) from error


def describe_plugin(record: PluginRecord) -> dict[str, Any]:
    """A record as plain JSON values."""
    return {
        "name": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "vendor": record.info.vendor if record.info else None,
        "api": record.info.api if record.info else None,
        "hooks": list(record.hooks),
        "devices": [
            {**asdict(device), "features": sorted(device.features)} for device in record.devices
        ],
        "state": record.state,
        "failure": _failure(record.failure),
        "import_s": round(record.import_s, 3),
    }


def describe_device(device: DeviceInfo) -> str:
    """One device in a few words."""
    memory = f", {device.memory_bytes / 2**30:.0f} GiB" if device.memory_bytes else ""
    return f"{device.kind}:{device.index} ({device.arch or 'arch unknown'}{memory})"


def _failure(error: PluginError | None) -> dict[str, Any] | None:
    return {"hook": error.hook, "message": str(error)} if error else None


def _state(record: PluginRecord) -> str:
    slow = f", slow import ({record.import_s:.1f} s)" if record.is_slow else ""
    return f"{record.state}{slow}"
