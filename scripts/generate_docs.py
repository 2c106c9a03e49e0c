"""Rewrites the parts of the documents that are made from code, or says which are stale.

    python scripts/generate_docs.py            # what `make docs` runs
    python scripts/generate_docs.py --check    # what a test runs; exit status 1 if one is stale

A generated part stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`. Knows which
part belongs where; the modules beside this one make the text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import command_pages
import plugin_pages
import support_tables

ROOT = Path(__file__).parents[1]

PARTS: dict[str, dict[str, Callable[[Path], str]]] = {
    "README.md": {"support": support_tables.render},
    "docs/cli.md": {"commands": command_pages.render},
    "docs/determinism.md": {"bounds": support_tables.render_bounds},
    "docs/support.md": {"ops": support_tables.render_ops},
    "docs/plugins.md": {
        "entry point": plugin_pages.render_entry_point,
        "plugin.py": plugin_pages.render_plugin_module,
        "kernels.py": plugin_pages.render_kernels_module,
        "hooks": plugin_pages.render_hooks,
        "records": plugin_pages.render_records,
    },
}
"""Document -> its generated parts. Each is made from the root of the workspace."""


def main(words: list[str]) -> int:
    """Write all documents, or with `--check` only compare them."""
    is_check = words == ["--check"]
    if words and not is_check:
        print(__doc__, file=sys.stderr)
        return 2
    stale = []
    for name, parts in PARTS.items():
        path = ROOT / name
        old = path.read_text(encoding="utf-8")
        new = fill_in(old, {part: make(ROOT) for part, make in parts.items()}, name)
        if new == old:
            continue
        stale.append(name)
        if not is_check:
            path.write_text(new, encoding="utf-8")
    verb = "stale, run `make docs`" if is_check else "written"
    print(f"{verb}: {', '.join(stale)}" if stale else "documents are up to date")
    return 1 if is_check and stale else 0


def fill_in(document: str, parts: dict[str, str], name: str) -> str:
    """Replace what stands between the markers of each part.

    Raises:
        ValueError: a part has no markers, or more than one pair of them.
    """
    for part, text in parts.items():
        begin, end = f"<!-- generated: {part} -->", f"<!-- end: {part} -->"
        if document.count(begin) != 1 or document.count(end) != 1:
            raise ValueError(f"{name} needs exactly one {begin} and one {end}")
        before, _, rest = document.partition(begin)
        after = rest.partition(end)[2]
        document = f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"
    return document


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
