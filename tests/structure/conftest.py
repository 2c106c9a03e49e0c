"""The packages of this workspace as parsed source: what structural tests look at."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    path: Path

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def imports(self, *, runtime_only: bool = True) -> set[str]:
        """Dotted names that the module imports, `from a import b` as both `a` and `a.b`."""
        found: set[str] = set()
        for node in walk(self.tree, skip_type_checking=runtime_only):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                found.add(base)
                found.update(f"{base}.{alias.name}" for alias in node.names)
        return found

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parents = self.name.split(".")
        cut = len(parents) - node.level + (1 if self.is_package else 0)
        return ".".join([*parents[:cut], *([node.module] if node.module else [])])


def walk(tree: ast.AST, *, skip_type_checking: bool = False):
    """All nodes, without the bodies of `if TYPE_CHECKING:` if asked."""
    for child in ast.iter_child_nodes(tree):
        if skip_type_checking and is_type_checking(child):
            continue
        yield child
        yield from walk(child, skip_type_checking=skip_type_checking)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def load_package(src: Path) -> dict[str, Module]:
    """Modules below a `src` folder, by dotted name."""
    modules = {}
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path)
    return modules


def source_folders() -> dict[str, Path]:
    """Import name -> `src` folder, of every distribution in the workspace."""
    folders = [*ROOT.glob("deepinfer-*/src"), *ROOT.glob("plugins/*/src")]
    return {package.name: src for src in folders for package in src.iterdir()
            if (package / "__init__.py").exists()}  # fmt: skip


@pytest.fixture(scope="session")
def root() -> Path:
    """Of the workspace."""
    return ROOT


@pytest.fixture(scope="session")
def packages() -> dict[str, dict[str, Module]]:
    """Import name -> its modules."""
    return {name: load_package(src) for name, src in source_folders().items()}


@pytest.fixture(scope="session")
def core(packages) -> dict[str, Module]:
    return packages["deepinfer_core"]
