"""Compiles the modules with protocol code once more, with ASPEN_SIMULATION, and the module of hooks that they need beside them.

    python -m tests.simulation.native.build

The results lie in `build/simulation`. A module whose sources have not changed is left alone. Kernels are not compiled again: the static
libraries of the ordinary build are linked.
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
    *("-std=gnu11", "-O1", "-g1", "-fPIC", "-w", "-ffp-contract=off", "-fno-math-errno"),
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
    """The hash of the shared layout, as `CMakeLists.txt` makes it."""
    protocol = ROOT / "shm" / "protocol"
    return hashlib.sha256(b"".join((protocol / name).read_bytes() for name in ("layout.h", "opcodes.h"))).hexdigest()[:16]


def _headers() -> list[Path]:
    """Files that modules include or cimport."""
    found = [file for folder in INCLUDED for file in (ROOT / folder).rglob("*.h")]
    return sorted({*found, *ROOT.glob("shm/bindings/*.pxd")})


def _commands(module: Module) -> tuple[list[str], list[str], list[str]]:
    """Commands that make C of a module, an object file of that, and a library of that."""
    import numpy

    out = place(module)
    code, target = (str(out.with_name(module.name.rpartition(".")[2] + end)) for end in (".c", ".o"))
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    cached = [found] if (found := shutil.which("ccache")) else []
    folders = [sysconfig.get_path("include"), numpy.get_include(), *(ROOT / folder for folder in INCLUDED)]
    options = [*FLAGS, f"-DASPEN_LAYOUT_HASH=0x{layout_hash()}ull", *(f"-I{folder}" for folder in folders)]
    libraries = [str(file) for file in kernels()] if module.kernels else []
    shared = [] if module is HOOKS else ["--shared", SHARED]
    cython = [sys.executable, "-m", "cython", "-3", "-I", str(TREE), *shared]
    return (
        [*cython, "--module-name", module.name, str(ROOT / module.source), "-o", code],
        [*cached, compiler, *options, "-c", code, "-o", target],
        [compiler, "-shared", target, *libraries, "-lm", "-o", str(out)],
    )


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _compile(module: Module, common: bytes) -> bool:
    """Compile a module, unless that was done from the same sources. Returns whether it was compiled. `common`: what all modules include."""
    out = place(module)
    commands = _commands(module)
    linked = [(file.stat().st_mtime_ns, file.stat().st_size) for file in kernels()] if module.kernels else []
    digest = hashlib.sha256(repr((commands, linked)).encode() + (ROOT / module.source).read_bytes() + common).hexdigest()
    stamp = out.with_suffix(".stamp")
    if out.exists() and stamp.exists() and stamp.read_text() == digest:
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    out.unlink(missing_ok=True)  # a process that has loaded it keeps it
    for command in commands:
        _run(command)
    stamp.write_text(digest)
    return True


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One process compiles at a time."""
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
