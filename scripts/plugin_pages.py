"""The plugin pages: the tutorial's source, every hook with its example, every record.

Hooks come from their docstrings, records from their source, where each field has a string below.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

from deepinfer_core.plugin_api import hookspecs
from deepinfer_core.plugin_checks import HOOKS
from markup import code, table

EXAMPLE = "plugins/deepinfer-example"
PLUGIN_API = "deepinfer-core/src/deepinfer_core/plugin_api"
RECORD_FILES = ("kernel.py", "device.py", "records.py", "recipe.py")


def render_entry_point(root: Path) -> str:
    """The lines of the example's pyproject that make it a plugin."""
    text = (root / EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    lines = re.search(r"^\[project\.entry-points\.deepinfer\]\n(?:.+\n)+", text, re.MULTILINE)
    if lines is None:
        raise ValueError(f"{EXAMPLE}/pyproject.toml has no entry point for deepinfer")
    return code(lines.group(), "toml")


def render_plugin_module(root: Path) -> str:
    """What the example registers."""
    return _source(root / EXAMPLE / "src/deepinfer_example/plugin.py")


def render_kernels_module(root: Path) -> str:
    """What the example computes."""
    return _source(root / EXAMPLE / "src/deepinfer_example/kernels.py")


def render_hooks(root: Path) -> str:
    """Every hook: signature, meaning, example."""
    return "\n\n".join(part for name in HOOKS for part in _hook(name))


def render_records(root: Path) -> str:
    """Every record: its fields, their types, defaults and meaning."""
    parts = []
    for name in RECORD_FILES:
        tree = ast.parse((root / PLUGIN_API / name).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and (fields := list(_fields(node))):
                parts += [f"### {node.name}", _first_paragraph(ast.get_docstring(node) or ""),
                          table(("field", "type", "default", "what it is"), fields)]  # fmt: skip
    return "\n\n".join(parts)


def example_of(hook: str) -> str:
    """The code in a hook's docstring."""
    doc = inspect.getdoc(getattr(hookspecs, hook)) or ""
    # In some docstrings the code is indented deeper than the prose, in others it is not.
    start = doc.rfind("\n", 0, doc.index("@hookimpl")) + 1
    return dedent(doc[start:]).strip()


def _hook(name: str) -> Iterator[str]:
    function = getattr(hookspecs, name)
    doc = inspect.getdoc(function) or ""
    yield f"### {name}"
    yield code(f"{name}{inspect.signature(function)}".replace("'", ""), "python")
    for paragraph in doc[: doc.index("@hookimpl")].strip().split("\n\n"):
        yield " ".join(paragraph.split())
    yield code(example_of(name), "python")


def _source(path: Path) -> str:
    return code(path.read_text(encoding="utf-8"), "python")


def _first_paragraph(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split())


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign):
            continue
        doc = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            doc = " ".join(str(following.value.value).split())
        default = f"`{ast.unparse(statement.value)}`" if statement.value else ""
        name, kind = ast.unparse(statement.target), ast.unparse(statement.annotation)
        yield f"`{name}`", f"`{kind}`", default, doc
