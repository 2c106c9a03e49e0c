"""Empty libraries in the place of the vendor's toolkit: `python stub_libraries.py FOLDER`.

With them `import torch_npu` works on a machine without the toolkit and without an NPU: schemas
and shape functions are there, and nothing computes. Needs gcc, nm and readelf. The device
that they report is named in DEEPINFER_STUB_SOC.

    LD_LIBRARY_PATH=FOLDER python -c 'import torch_npu'
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

SITE = Path(sysconfig.get_paths()["purelib"])
TOOLKIT = re.compile(r"lib(hccl|ascend|acl|ge_|graph|fmk|atb|runtime|msprof|profapi)")
LOOKED_UP = re.compile(
    r"(aclrt|aclmdl|aclprof|acltdt|aclop|aclsys|acl)[A-Z]\w+|Hccl[A-Z][A-Za-z0-9]+"
)
"""Names that torch_npu looks up when it runs; the operators' own (`aclnn`) are not."""
SYSTEM = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1")
WRITTEN = {
    "aclrtGetDeviceCount": "int aclrtGetDeviceCount(unsigned *n) { *n = 1; return 0; }",
    "aclrtGetDevice": "int aclrtGetDevice(int *device) { *device = 0; return 0; }",
    "aclrtGetSocName": (
        "const char *aclrtGetSocName(void) {\n"
        '  const char *name = getenv("DEEPINFER_STUB_SOC");\n'
        '  return name ? name : "Ascend910B1";\n}'
    ),
    "aclGetRecentErrMsg": 'const char *aclGetRecentErrMsg(void) { return "a stub"; }',
}
FUNCTION = (
    '__asm__(".text\\n.globl {0}\\n.type {0},@function\\n{0}:\\n xorl %eax,%eax\\n ret\\n'
    '.size {0},.-{0}");\n'
)
TABLE = '__asm__(".data\\n.globl {0}\\n.balign 16\\n{0}:\\n .zero 256\\n.size {0},256\\n.text");\n'


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    binaries = find_binaries()
    missing = missing_symbols(binaries)
    (folder / "stub.c").write_text(source(missing), encoding="ascii")
    build(folder, "libascendcl.so", "stub.c")
    (folder / "empty.c").write_text("", encoding="ascii")
    libraries = needed_libraries(binaries)
    for name in libraries - {"libascendcl.so"}:
        build(folder, name, "empty.c", "-Wl,--no-as-needed", f"-L{folder}", "-lascendcl")
    print(f"{len(libraries)} libraries with {len(missing)} symbols in {folder}")


def find_binaries() -> list[Path]:
    root = SITE / "torch_npu"
    found = [*root.glob("_C*.so"), *root.glob("lib/*.so"), *root.glob("dynamo/torchair/core/*.so")]
    if not found:
        raise SystemExit(f"there is no torch_npu in {SITE}; install it with --no-deps beside torch")
    return found


def missing_symbols(binaries: Iterable[Path]) -> list[str]:
    """What torch_npu wants and neither torch nor the system has, and what it looks up by name."""
    wanted: set[str] = set()
    defined: set[str] = set()
    for path in binaries:
        wanted |= symbols(path, "--undefined-only")
        defined |= symbols(path, "--defined-only")
    for path in (SITE / "torch" / "lib").glob("*.so*"):
        defined |= symbols(path, "--defined-only")
    for name in SYSTEM:
        defined |= symbols(system_library(name), "--defined-only")
    library = SITE / "torch_npu" / "lib" / "libtorch_npu.so"
    words = run("strings", "-n", "6", str(library)).split()
    looked_up = {word for word in words if LOOKED_UP.fullmatch(word)}
    looked_up = {word for word in looked_up if not word.startswith("aclnn")}
    wanted = {name for name in wanted if not name.startswith(("Py", "_Py"))}
    return sorted((wanted | looked_up) - defined)


def symbols(path: Path, which: str) -> set[str]:
    lines = [line.split() for line in run("nm", "-D", which, str(path)).splitlines()]
    # Weak ones (w) may stay away.
    return {words[-1].split("@")[0] for words in lines if words[-2] != "w"}


def system_library(name: str) -> Path:
    return Path(run("gcc", f"-print-file-name={name}").strip()).resolve()


def needed_libraries(binaries: Iterable[Path]) -> set[str]:
    """Those of the toolkit that the loader looks for."""
    found: set[str] = set()
    for path in binaries:
        found |= set(re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", str(path))))
    return {name for name in found if TOOLKIT.match(name) and not is_shipped(name)}


def is_shipped(name: str) -> bool:
    return any((SITE / package / "lib" / name).exists() for package in ("torch", "torch_npu"))


def source(names: Iterable[str]) -> str:
    parts = ["#include <stdlib.h>\n"]
    for name in names:
        if name in WRITTEN:
            parts.append(f"{WRITTEN[name]}\n")
        else:
            is_table = name.startswith(("_ZTV", "_ZTI", "_ZTS"))
            parts.append((TABLE if is_table else FUNCTION).format(name))
    return "".join(parts)


def build(folder: Path, name: str, code: str, *options: str) -> None:
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", name, f"-Wl,-soname,{name}", code, *options]
    subprocess.run([*command, "-Wl,-rpath,$ORIGIN"], cwd=folder, check=True)


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
