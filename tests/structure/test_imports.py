"""Imports are cheap, silent and free of cycles."""

import ast
import json
import re
import subprocess
import sys

import pytest

PROBE = """
import json, logging, os, sys, threading
before = threading.active_count(), logging.getLogger().handlers[:], logging.getLogger().level
environment = dict(os.environ)
for name in {names!r}:
    __import__(name)
after = threading.active_count(), logging.getLogger().handlers[:], logging.getLogger().level
torch = sys.modules.get("torch")
print(json.dumps({{
    "torch": torch is not None,
    "same": before == after and environment == dict(os.environ),
    "handlers": [n for n, l in logging.root.manager.loggerDict.items()
                 if n.startswith("deepinfer") and getattr(l, "handlers", None)],
    "device": bool(torch and torch.accelerator.is_available()
                   and torch.get_device_module().is_initialized()),
}}))
"""

TORCH_FREE = [
    "deepinfer_core",
    "deepinfer_core.plugin_api",
    "deepinfer_core.plugin_api.hookspecs",
    "deepinfer_core.scheduling.scheduler",
    "deepinfer_core.kv.manager",
    "deepinfer_core.kv.layout",
    "deepinfer_core.ops",
    "deepinfer_core.ops.table",
    "deepinfer_core.ops.builtin",
    "deepinfer_core.plugins",
    "deepinfer_core.config",
    "deepinfer_core.sampling_params",
]


def import_in_fresh_process(*names):
    """Import modules where nothing was imported before; returns what changed and was printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE.format(names=names)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    *printed, report = done.stdout.splitlines()
    return json.loads(report), printed + done.stderr.splitlines()


@pytest.mark.parametrize("name", TORCH_FREE)
def test_light_modules_import_no_torch_and_do_nothing(name):
    report, printed = import_in_fresh_process(name)
    assert report == {"torch": False, "same": True, "handlers": [], "device": False}
    assert printed == []


def test_every_module_of_the_pure_layers_imports_no_torch(core):
    pure = [n for n in core if n.split(".")[1:2] and n.split(".")[1] in
            ("plugin_api", "scheduling", "kv")]  # fmt: skip
    assert len(pure) > 8
    assert import_in_fresh_process(*pure)[0]["torch"] is False


def test_importing_all_of_core_starts_no_thread_and_configures_nothing(core):
    report, printed = import_in_fresh_process(*(n for n in core if is_importable(n)))
    assert (report["same"], report["handlers"], report["device"]) == (True, [], False)
    assert printed == []


def test_public_names_resolve_lazily_and_import_no_torch_until_needed():
    code = (
        "import sys, deepinfer_core as d; d.hookimpl; d.SamplingParams; d.EngineConfig; "
        "d.PluginError; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def is_importable(name):
    """Not a module that only pytest loads, which registers fixtures and needs extras."""
    return not name.startswith("deepinfer_core.testing")


def test_no_import_cycles(packages):
    for modules in packages.values():
        edges = {
            name: {other for other in module.imports() if other in modules and other != name}
            for name, module in modules.items()
        }
        assert find_cycle(edges) is None


def find_cycle(edges):
    """A list of modules that import each other in a ring, or None."""
    state = {}

    def visit(name, path):
        state[name] = "open"
        for other in sorted(edges[name]):
            if state.get(other) == "open":
                return [*path[path.index(other) :], other] if other in path else [name, other]
            if other not in state and (cycle := visit(other, [*path, other])):
                return cycle
        state[name] = "done"
        return None

    for name in sorted(edges):
        if name not in state and (cycle := visit(name, [name])):
            return cycle
    return None


def test_cycles_are_found():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def test_no_imports_inside_functions_but_marked_extras(packages):
    found = []
    for modules in packages.values():
        for module in modules.values():
            for function in ast.walk(module.tree):
                if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                for node in ast.walk(function):
                    if isinstance(node, (ast.Import, ast.ImportFrom)):
                        around = module.lines[node.lineno - 2 : node.end_lineno]
                        if not any("# optional:" in line for line in around):
                            found.append(f"{module.name}:{node.lineno}")
    assert found == []


def test_no_bare_except_and_no_leftovers(packages):
    found = []
    for modules in packages.values():
        for module in modules.values():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ExceptHandler) and node.type is None:
                    found.append(f"{module.name}:{node.lineno}: bare except")
                if isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node):
                    found.append(f"{module.name}:{node.lineno}: a method that only raises")
            found += [
                f"{module.name}:{number}: {line.strip()}"
                for number, line in enumerate(module.lines, 1)
                if re.search(r"#\s*(TODO|FIXME|XXX)\b", line)
            ]
    assert found == []


def test_every_module_says_what_it_owns(packages):
    silent = [
        module.name
        for modules in packages.values()
        for module in modules.values()
        if module.text.strip() and ast.get_docstring(module.tree) is None
    ]
    assert silent == []
