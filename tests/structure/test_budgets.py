"""Sizes that keep code readable: every excess is printed with its number."""

import ast

FILE_LINES, FILE_LINES_HARD = 300, 400
FUNCTION_LINES = 50
PARAMETERS = 8
ATTRIBUTES = 15
PROJECT_IMPORTS = 12

# Kernels are exempt from the function budget, op specs from the parameter budget; references,
# invariant twins and a backend's kernels have the signatures of their specs.
SPEC_SIGNATURES = (".ops.specs", ".ops.reference", ".kernels")
KERNELS = (".kernels",)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_in(name, places):
    return any(f"{place}." in f"{name}." for place in places)


def all_modules(packages):
    return [module for modules in packages.values() for module in modules.values()]


def functions(module):
    return [node for node in ast.walk(module.tree) if isinstance(node, FUNCTIONS)]


def code_lines(function):
    """Length without decorators and docstring: the budget is for code, not for explanation."""
    length = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        length -= first.end_lineno - first.lineno + 1
    return length


def test_no_file_is_longer_than_the_hard_limit(packages):
    long = {m.name: len(m.lines) for m in all_modules(packages) if len(m.lines) > FILE_LINES_HARD}
    assert long == {}


def test_files_over_the_soft_limit_are_few(packages):
    modules = all_modules(packages)
    long = {m.name: len(m.lines) for m in modules if len(m.lines) > FILE_LINES}
    print(f"over {FILE_LINES} lines: {long}")
    assert len(long) <= len(modules) // 20, long


def test_functions(packages):
    long = {
        f"{module.name}:{function.lineno} {function.name}": code_lines(function)
        for module in all_modules(packages)
        if not is_in(module.name, KERNELS)
        for function in functions(module)
        if code_lines(function) > FUNCTION_LINES
    }
    assert long == {}


def test_parameters(packages):
    many = {}
    for module in all_modules(packages):
        # A command's parameters are its options, which typer reads off the signature.
        if is_in(module.name, (*SPEC_SIGNATURES, ".cli")):
            continue
        for function in functions(module):
            arguments = function.args
            named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            count = len([a for a in named if a.arg not in ("self", "cls")])
            if count > PARAMETERS:
                many[f"{module.name}:{function.lineno} {function.name}"] = count
    assert many == {}


def test_attributes_on_self(packages):
    wide = {}
    for module in all_modules(packages):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and (count := len(attributes(node))) > ATTRIBUTES:
                wide[f"{module.name}.{node.name}"] = count
    assert wide == {}


def attributes(cls):
    """Names that the methods of a class assign on `self`."""
    return {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_imports_from_the_project(packages):
    many = {}
    for package, modules in packages.items():
        for module in modules.values():
            # An `__init__` that only re-exports is a table of contents, not a knot.
            if module.is_package:
                continue
            ours = {name for name in module.imports() if name in modules} - {package}
            if len(ours) > PROJECT_IMPORTS:
                many[module.name] = len(ours)
    assert many == {}


def test_the_measures_measure():
    code = ast.parse(
        'class A:\n def f(self, a, *, b):\n  """Doc.\n\n  More.\n  """\n  self.x = self.y\n'
        "  self.z: int = 3\n  self.x, self.w = 1, 2\n"
    )
    (cls,) = code.body
    assert attributes(cls) == {"x", "z", "w"}
    assert code_lines(cls.body[0]) == 4
