"""The build hook: compiles the library into the wheel, or beside the sources if editable."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileKernels(BuildHookInterface):
    """Adds the library; a machine without a compiler gets a package that steps aside."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build = load_build(Path(self.root))
        self.folder = tempfile.TemporaryDirectory()
        try:
            if version == "editable":
                build.build()
                return
            library = build.build(Path(self.folder.name, build.LIBRARY.name))
        except build.BuildError as error:
            self.app.display_warning(f"deepinfer-cpu will not serve: {error}")
            return
        # The library calls nothing of Python, so any version may load it.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][str(library)] = f"deepinfer_cpu/{library.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.folder.cleanup()


def load_build(root: Path) -> ModuleType:
    """The package's own `build.py`, without the package, whose dependencies need not be here."""
    path = root / "src" / "deepinfer_cpu" / "build.py"
    spec = importlib.util.spec_from_file_location("deepinfer_cpu_build", path)
    if spec is None or spec.loader is None:
        sys.exit(f"cannot read {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
