"""Compiles the modules with protocol code once more, with ASPEN_SIMULATION, and the module of hooks that they need beside them.

    python -m tests.simulation.native.build

What is compiled lies in `build/simulation`. A module whose sources are as they were is left alone. Kernels are not compiled again: the
static libraries of the ordinary build are linked.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
TREE: Final = ROOT / "build" / "tree"
TAG: Final = sys.implementation.cache_tag.removeprefix("cpython-")
FOLDER: Final = ROOT / "build" / "simulation" / f"cp{TAG}"
SHARED: Final = "aspen_mp.shm.bindings._shared"
FLAGS: Final = (
    *("-std=gnu11", "-O1", "-g1", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-fno-math-errno"),
    *("-DASPEN_SIMULATION", "-DNPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION"),
)
INCLUDED: Final = ("shm/protocol", "workers", "workers/kernels", "planner/coschedule", "tests/simulation/native")
NOT_BUILT: Final = 3
"""Status of the command where there is no ordinary build."""


class NotBuiltError(Exception):
    """There is no ordinary build whose kernels could be linked."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module to compile. `kernels`: it calls kernels."""

    name: str
    source: str
    kernels: bool = False


HOOKS: Final = Module("simulation.native._hooks", "tests/simulation/native/_hooks.pyx")
MODULES: Final = (
    Module("aspen_mp.workers._dse", "workers/_dse.pyx", kernels=True),
    Module("aspen_mp.shm.bindings._control", "shm/bindings/_control.pyx"),
    Module("aspen_mp.shm.bindings._channel", "shm/bindings/_channel.pyx"),
    Module("aspen_mp.workers._kernels", "workers/_kernels.pyx", kernels=True),
    Module("aspen_mp.planner.coschedule._search", "planner/coschedule/_search.pyx"),
    Module("aspen_mp.shm.bindings._tally", "shm/bindings/_tally.pyx"),
    Module("aspen_mp.shm.bindings._mapping", "shm/bindings/_mapping.pyx"),
    HOOKS,
)
"""Those that take longest to compile come first."""


def place(module: Module) -> Path:
    """The file of a compiled module."""
    return FOLDER / (module.name.replace(".", "/") + str(sysconfig.get_config_var("EXT_SUFFIX")))


def kernels() -> list[Path]:
    """The static libraries with the kernels, of the latest ordinary build. NotBuiltError where there is none."""
    found = sorted((ROOT / "build").glob(f"cp{TAG}-*/workers/kernels/libaspen_kernels.a"), key=lambda file: file.stat().st_mtime)
    if not found or not (TREE / "aspen_mp").is_dir():
        raise NotBuiltError(f"no build of aspen-mp for Python {TAG} in {ROOT / 'build'}: `make setup` makes one")
    return [found[-1], found[-1].with_name("libaspen_isa.a")]


def layout_hash() -> str:
    """As `CMakeLists.txt` has it."""
    protocol = ROOT / "shm" / "protocol"
    return hashlib.sha256(b"".join((protocol / name).read_bytes() for name in ("layout.h", "opcodes.h"))).hexdigest()[:16]


def _headers() -> list[Path]:
    """What modules include, and what they take from each other."""
    found = [file for folder in INCLUDED for file in (ROOT / folder).rglob("*.h")]
    return sorted({*found, *ROOT.glob("shm/bindings/*.pxd")})


def _compile_command(module: Module, code: Path, out: Path) -> list[str]:
    import numpy

    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    folders = [sysconfig.get_path("include"), numpy.get_include(), *(ROOT / folder for folder in INCLUDED)]
    ccache = [shutil.which("ccache") or ""]
    libraries = [*map(str, kernels()), "-lm"] if module.kernels else ["-lm"]
    definition = f"-DASPEN_LAYOUT_HASH=0x{layout_hash()}ull"
    target = code.with_suffix(".o")
    compile_ = [*filter(None, ccache), compiler, *FLAGS, definition, *(f"-I{folder}" for folder in folders), "-c", str(code), "-o", str(target)]
    return [*compile_, "&&", compiler, "-shared", str(target), *libraries, "-o", str(out)]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _compile(module: Module, common: bytes) -> bool:
    """Compiles a module, unless it was compiled from the same. Whether it did."""
    out = place(module)
    code = out.with_name(f"{module.name.rpartition('.')[2]}.c")
    command = _compile_command(module, code, out)
    linked = [str(file.stat()) for file in kernels()] if module.kernels else []
    digest = hashlib.sha256(repr((command, linked)).encode() + (ROOT / module.source).read_bytes() + common).hexdigest()
    stamp = out.with_suffix(".stamp")
    if out.exists() and stamp.exists() and stamp.read_text() == digest:
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    out.unlink(missing_ok=True)  # who has it loaded keeps it
    shared = ["--shared", SHARED] if module.name.startswith("aspen_mp") else []
    source = str(ROOT / module.source)
    _run([sys.executable, "-m", "cython", "-3", "-I", str(TREE), *shared, "--module-name", module.name, source, "-o", str(code)])
    at = command.index("&&")
    _run(command[:at])
    _run(command[at + 1 :])
    stamp.write_text(digest)
    return True


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Processes that want the same wait for the one that compiles it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build() -> int:
    """Compiles what is not up to date. Returns how many modules that were. NotBuiltError where there is no ordinary build."""
    kernels()
    with _alone(), ThreadPoolExecutor(os.cpu_count()) as pool:
        common = b"".join(file.read_bytes() for file in _headers())
        return sum(pool.map(lambda module: _compile(module, common), MODULES))


def main() -> int:
    """Compiles, and says what was compiled."""
    try:
        print(f"{build()} of {len(MODULES)} modules compiled, in {FOLDER.relative_to(ROOT)}")
    except NotBuiltError as error:
        print(error)
        return NOT_BUILT
    return 0


if __name__ == "__main__":
    sys.exit(main())
