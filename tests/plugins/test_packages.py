"""Every package of the workspace as a packager sees it: built, described, installed alone."""

import ast
import json
import os
import re
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(
    path.parent
    for pattern in ("deepinfer-*/pyproject.toml", "plugins/*/pyproject.toml")
    for path in ROOT.glob(pattern)
)
LICENSES = {"Apache-2.0": "Apache License", "MIT": "MIT License"}

# Pydantic documents that some of its public names are imported from here, and pins it itself.
PART_OF = {"pydantic-core": "pydantic"}
# A plugin's own border may use what only a plugin host that loads it brings.
BORDERS = {"deepinfer-recipe": {"deepinfer-core", "typer"}}


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def folder(request):
    return request.param


@pytest.fixture(scope="module")
def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="session")
def dist_of(build, tmp_path_factory):
    """Folder -> wheel and sdist, each built once; the wheel from the sdist."""
    built = {}

    def dist_of(folder):
        if folder not in built:
            built[folder] = build(folder, tmp_path_factory.mktemp(folder.name))
        (wheel,), (sdist,) = built[folder].glob("*.whl"), built[folder].glob("*.tar.gz")
        return wheel, sdist

    return dist_of


@pytest.fixture(scope="module")
def wheel(dist_of, folder):
    return dist_of(folder)[0]


def test_there_are_packages():
    names = {folder.name for folder in FOLDERS}
    assert names >= {"deepinfer-core", "deepinfer-recipe", "deepinfer-example"}


def test_wheel_and_sdist_pass_twine(dist_of, folder, run):
    done = run(sys.executable, "-m", "twine", "check", "--strict", *dist_of(folder))
    assert done.stdout.count("PASSED") == 2


def test_the_metadata_names_license_readme_and_python(wheel, project, folder):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(path).decode())
        license_text = archive.read(path.replace("METADATA", "licenses/LICENSE")).decode()
    assert metadata["Name"] == project["name"] == folder.name
    assert metadata["License-Expression"] == project["license"]
    assert metadata["License-File"] == "LICENSE"
    assert license_text.strip().startswith(LICENSES[project["license"]])
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert len(metadata.get_payload()) > 200
    # Ranges, never exact pins.
    assert [r for r in metadata.get_all("Requires-Dist", []) if "==" in r.split(";")[0]] == []


def test_the_changelog_begins_with_the_version(folder, project):
    versions = re.findall(r"^## \[?(\d\S*?)\]?(?: |$)", (folder / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == project["version"]


def test_the_wheel_holds_the_package_and_nothing_else(wheel, folder):
    (package,) = [path.parent for path in (folder / "src").glob("*/__init__.py")]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    ours = {name for name in names if ".dist-info/" not in name}
    assert f"{package.name}/py.typed" in ours
    assert {name for name in ours if not name.startswith(f"{package.name}/")} == set()
    assert [name for name in ours if "__pycache__" in name or "_cache/" in name] == []
    sources = {str(path.relative_to(folder / "src")) for path in package.rglob("*.py")}
    assert {name for name in ours if name.endswith(".py")} == sources


def test_the_sdist_holds_sources_and_what_they_need(dist_of, folder):
    with tarfile.open(dist_of(folder)[1]) as archive:
        tops = {name.split("/", 2)[1] for name in archive.getnames()}
    # A build hook, where a package compiles something.
    assert tops - {".gitignore", "hatch_build.py"} == {
        "src", "pyproject.toml", "PKG-INFO", "README.md", "CHANGELOG.md", "LICENSE",
    }  # fmt: skip


def normalise(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(folder):
    """Distributions that the sources import, at run time or for types."""
    distributions = packages_distributions()
    found = set()
    for path in (folder / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for top in {name.split(".")[0] for name in names} - set(sys.stdlib_module_names):
                # Those of the workspace may be on the path without being installed.
                found.add(normalise(distributions.get(top, [top])[0]))
    own = normalise(folder.name)
    return {PART_OF.get(name, name) for name in found} - {own}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported(folder, project):
    extras = project.get("optional-dependencies", {}).values()
    declared = [*project.get("dependencies", []), *(name for extra in extras for name in extra)]
    names = {normalise(re.match(r"[\w.-]+", text).group()) for text in declared}
    borders = BORDERS.get(folder.name, set())
    assert imported(folder) - borders == names - borders


@pytest.fixture(scope="module")
def core(dist_of, make_environment, tmp_path_factory):
    """The `bin` folder of a fresh environment with core's wheel."""
    wheel, _ = dist_of(ROOT / "deepinfer-core")
    return make_environment(tmp_path_factory.mktemp("core") / "env", wheel).parent


@pytest.fixture
def run_alone(run, tmp_path):
    """Run a command that can see neither this checkout nor our path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return lambda *words: run(*words, cwd=tmp_path, env=environment)


def test_the_installed_command_answers(core, run_alone):
    assert run_alone(core / "deepinfer", "--version").stdout == "deepinfer 0.1.0\n"
    assert "Usage: deepinfer" in run_alone(core / "deepinfer", "--help").stdout
    where = "import deepinfer_core; print(deepinfer_core.__file__)"
    assert run_alone(core / "python", "-c", where).stdout.startswith(str(core.parent))


def test_the_installed_command_lists_plugins(core, run_alone):
    answer = json.loads(run_alone(core / "deepinfer", "plugins", "--json").stdout)
    (core_plugin,) = [p for p in answer["plugins"] if p["name"] == "core"]
    assert (core_plugin["state"], core_plugin["distribution"]) == ("loaded", "deepinfer-core")


def test_the_recipe_works_without_core_and_torch(
    dist_of, make_environment, run_alone, tmp_path_factory
):
    wheel, _ = dist_of(ROOT / "deepinfer-recipe")
    python = make_environment(tmp_path_factory.mktemp("recipe") / "env", wheel)
    code = (
        "import sys; sys.modules.update(torch=None, deepinfer_core=None); "
        "import deepinfer_recipe; print(deepinfer_recipe.__file__)"
    )
    assert run_alone(python, "-c", code).stdout.startswith(str(python.parents[1]))
