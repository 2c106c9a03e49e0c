"""Documents agree with the code: generated parts, command lines, links, trees, lengths."""

import re
import shlex
import subprocess
import sys

import pytest
import typer
from deepinfer_core.cli import build_app
from deepinfer_core.config_sources import resolve_config

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/*.md", "*/README.md", "plugins/*/README.md")
README_LINES = 150
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="session")
def documents(root):
    """Path -> text of everything that people read, but the log of experiments."""
    paths = sorted({path for pattern in DOCUMENTS for path in root.glob(pattern)})
    return {path: path.read_text() for path in paths}


def blocks(text, language):
    return [body for found, body in BLOCK.findall(text) if found == language]


def command_lines(text):
    """The words of every `deepinfer` command in the shell blocks of a document."""
    for line in "".join(blocks(text, "bash")).splitlines():
        if "deepinfer " not in line:
            continue
        for part in line.split(" | "):
            words = shlex.split(part, comments=True)
            if "deepinfer" in words:
                yield words[words.index("deepinfer") + 1 :]


def test_generated_parts_are_up_to_date(root):
    command = [sys.executable, root / "scripts" / "generate_docs.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_stays_short(root):
    assert len((root / "README.md").read_text().splitlines()) <= README_LINES


def parse(words):
    """Parse a command line without running it."""
    command = typer.main.get_command(build_app(words))
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    command.make_context("deepinfer", rest)


def test_every_command_line_in_the_documents_is_one(root, documents):
    found, bad = 0, {}
    recipes = (root / "Makefile").read_text().replace("$(BIN)/", "").replace("$(MODEL)", "M")
    makefile = {root / "Makefile": f"```bash\n{recipes}```"}
    for path, text in (documents | makefile).items():
        for words in command_lines(text):
            found += 1
            try:
                parse(words)
            except Exception as error:  # of typer's own click, which has no stable address
                bad[f"{path.name}: deepinfer {shlex.join(words)}"] = str(error)
    assert bad == {}
    assert found > 20


def test_a_command_line_that_is_none_is_noticed():
    for words in (["generate", "--no-such-option"], ["batch", "in.jsonl"]):
        with pytest.raises(Exception, match=r"--no-such-option|output"):
            parse(words)


def test_the_configuration_file_in_the_documents_is_one(root, tmp_path):
    (text,) = blocks((root / "docs/cli.md").read_text(), "toml")
    file = tmp_path / "engine.toml"
    file.write_text(text)
    resolved = resolve_config(file=file, env={}, flags={"model": "m"})
    assert resolved.config.device.batch_invariant
    assert resolved.sources["scheduler.max_num_seqs"] == f"file {file}"


def test_links_lead_somewhere(documents):
    broken = []
    for path, text in documents.items():
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", text):
            page = path.parent / target if target else path
            if not page.exists():
                broken.append(f"{path.name}: {target}")
            elif anchor and anchor not in anchors(page.read_text()):
                broken.append(f"{path.name}: {target}#{anchor}")
    assert broken == []


def anchors(text):
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_tree_in_the_readme_exists(root):
    tree = blocks((root / "README.md").read_text(), "")[0]
    missing = []
    for line in tree.splitlines():
        folder = root / "deepinfer-core/src/deepinfer_core" if line.startswith("  ") else root
        names = re.split(r"\s{2,}", line.strip())[0].split(", ")
        missing += [name for name in names if not (folder / name).exists()]
    assert missing == []
    assert len(tree.splitlines()) > 10


def test_paths_in_the_checklists_exist(root):
    """`ops/specs/<family>.py` and its like name folders and files of core, or of the root."""
    text = (root / "CONTRIBUTING.md").read_text()
    bases = (root, root / "deepinfer-core/src/deepinfer_core")
    missing = []
    for path in re.findall(r"`((?:\w[\w.-]*/)+[\w.<>-]*)`", text):
        pattern = path.replace("<family>", "*")
        if not any(list(base.glob(pattern)) for base in bases):
            missing.append(path)
    assert missing == []
