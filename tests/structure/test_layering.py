"""Who may import whom, and that no layer learns of a vendor."""

import ast
import re
import sys
import tomllib

import pytest

# `input` holds "npu", and order may be ascending: those two words are looked for more closely.
VENDOR = re.compile(
    r"cuda|triton|nvidia|(?<![a-z])npu(?![a-z])|(?-i:NPU)|(?<![a-z])ascend(?!(ing|s|ed)\b)",
    re.IGNORECASE,
)

# What a backend may use of core: the stable surface.
SURFACE = ("deepinfer_core.plugin_api", "deepinfer_core.ops", "deepinfer_core.errors",
           "deepinfer_core.testing", "deepinfer_core.hookimpl")  # fmt: skip
# Pydantic documents that some of its public names are imported from these, and pins them itself.
PARTS_OF_PYDANTIC = {"pydantic_core", "annotated_types"}
PURE = ("deepinfer_core.plugin_api", "deepinfer_core.scheduling", "deepinfer_core.kv")


def below(name, prefixes):
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def ours(names):
    return {name for name in names if name.split(".")[0].startswith("deepinfer_")}


def test_rule_1_core_knows_no_vendor_by_word(core):
    found = [
        f"{module.path.name}:{number}: {line.strip()}"
        for module in core.values()
        for number, line in enumerate(module.lines, 1)
        if VENDOR.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_vendor"),
    [
        ("torch.cuda.is_available()", True),
        ("# on NVIDIA boards", True),
        ("use_triton2", True),
        ("CUDAGraph", True),
        ("torch_npu.NPUGraph", True),
        ("npu:0", True),
        ("Ascend 910", True),
        ("deepinfer_ascend", True),
        ("input_ids and num_inputs", False),
        ("in ascending order, it ascends", False),
        ("descending", False),
    ],
)
def test_the_vendor_pattern_means_words(text, is_vendor):
    assert bool(VENDOR.search(text)) == is_vendor


def test_rule_1_core_imports_no_other_package_of_ours(core):
    for module in core.values():
        others = {n for n in ours(module.imports(runtime_only=False))
                  if not below(n, ["deepinfer_core"])}  # fmt: skip
        assert others == set(), module.name


def test_rule_2_backends_import_only_the_surface_and_never_each_other(packages):
    for package, modules in packages.items():
        if package in ("deepinfer_core", "deepinfer_recipe"):
            continue
        for module in modules.values():
            for name in ours(module.imports(runtime_only=False)):
                is_own = below(name, [package])
                # `from deepinfer_core import hookimpl` names the package as well.
                is_allowed = name == "deepinfer_core" or below(name, SURFACE)
                assert is_own or is_allowed, f"{module.name} imports {name}"


def test_rule_3_the_recipe_imports_neither_torch_nor_core(packages):
    for module in packages.get("deepinfer_recipe", {}).values():
        imported = module.imports(runtime_only=False)
        assert not any(below(name, ["torch"]) for name in imported), module.name
        core = {name for name in imported if below(name, ["deepinfer_core"])}
        if module.name == "deepinfer_recipe.plugin":
            core = {n for n in core if not below(n, SURFACE) and n != "deepinfer_core"}
        assert core == set(), module.name


def test_rule_4_pure_layers_import_pure_modules_only(core):
    """Follows imports: whatever a pure layer reaches at run time must not import torch."""
    heavy = {"torch", "safetensors", "transformers"}
    for start in (name for name in core if below(name, PURE)):
        todo, seen = [start], set()
        while todo:
            module = core[name] if (name := todo.pop()) in core else None
            if module is None or name in seen:
                continue
            seen.add(name)
            imported = module.imports()
            bad = {n for n in imported if n.split(".")[0] in heavy}
            assert not bad, f"{start} reaches {name}, which imports {sorted(bad)}"
            todo += [n for n in imported if n in core]


def test_only_the_command_line_and_the_edge_talk_to_a_person(core):
    """`print` and consoles belong to the command line and to progress bars."""
    for module in core.values():
        if below(module.name, ["deepinfer_core.cli", "deepinfer_core.observe",
                               "deepinfer_core.testing"]):  # fmt: skip
            continue
        called = [n.func for n in ast.walk(module.tree) if isinstance(n, ast.Call)]
        assert not any(isinstance(f, ast.Name) and f.id == "print" for f in called), module.name


def test_the_scheduler_never_sees_a_tensor_and_the_runner_never_a_request(core):
    for module in core.values():
        imported = module.imports(runtime_only=False)
        if below(module.name, ["deepinfer_core.scheduling", "deepinfer_core.kv"]):
            assert not any(below(n, ["torch", "numpy"]) for n in imported), module.name
        if below(module.name, ["deepinfer_core.runtime", "deepinfer_core.models",
                               "deepinfer_core.ops", "deepinfer_core.sampling"]):  # fmt: skip
            assert not any(below(n, ["deepinfer_core.request"]) for n in imported), module.name


def test_nothing_pluggable_runs_in_the_step(core):
    """Hooks are asked at start-up; the step calls plain functions of the frozen table."""
    step = ("scheduling", "kv", "runtime", "models", "sampling", "ops")
    for module in core.values():
        if below(module.name, [f"deepinfer_core.{part}" for part in step]):
            imported = module.imports(runtime_only=False)
            bad = {"pluggy", "deepinfer_core.plugins", "deepinfer_core.plugin_discovery"}
            assert not imported & bad, module.name


def test_only_standard_and_declared_modules_are_imported(core, root):
    project = tomllib.loads((root / "deepinfer-core/pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(name for extra in extras for name in extra)]
    names = {re.match(r"[A-Za-z0-9_-]+", d).group().replace("-", "_") for d in declared}
    for module in core.values():
        tops = {name.split(".")[0] for name in module.imports()}
        foreign = (
            tops - names - PARTS_OF_PYDANTIC - set(sys.stdlib_module_names) - {"deepinfer_core"}
        )
        assert foreign == set(), f"{module.name} imports undeclared {sorted(foreign)}"
