"""Compiles the tests in C with the system's compiler, from the repository's own headers or mutated copies of them: the model checker
(model.c) and the storm (tests/crash)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from folders import ROOT

T = TypeVar("T")
FLAGS = "-std=gnu11 -Wall -Wextra -Wno-unused-parameter -Wno-unused-function -DASPEN_LAYOUT_HASH=1ull"
CHECKER_FLAGS = "-DASPEN_MODEL_CHECK"
# The checker copies short stretches of words in loops of its own: as calls of memmove they take a sixth of its time.
CHECKER_ONLY_FLAGS = f"{CHECKER_FLAGS} -O3 -g -fno-tree-loop-distribute-patterns"
# The code under check: functions of their own, so that what they leave behind is cleared when they return; an atomic operation is a call
# there whose result is cast.
MODEL_FLAGS = f"{CHECKER_FLAGS} -fno-inline -fno-stack-protector -Wno-unused-value -Wno-missing-field-initializers"
# Tables without the entries that no scenario uses: a look at all of them would otherwise be most of what the checker does.
SMALL = {
    "layout.h": {
        "#define ASPEN_MAX_WORKERS 256": "#define ASPEN_MAX_WORKERS 3",
        "#define ASPEN_LANES 16": "#define ASPEN_LANES 2",
        "#define ASPEN_MAX_PLANS 1024": "#define ASPEN_MAX_PLANS 4",
        "#define ASPEN_MAX_INSTANCES 4096": "#define ASPEN_MAX_INSTANCES 4",
        "#define ASPEN_MAX_SEGMENTS 8192": "#define ASPEN_MAX_SEGMENTS 16",
        "#define ASPEN_FLOWS 4096": "#define ASPEN_FLOWS 8",
        "#define ASPEN_ACTIVE 512": "#define ASPEN_ACTIVE 4",
        "#define ASPEN_OUTLOOK 64": "#define ASPEN_OUTLOOK 4",
        "#define ASPEN_DEMANDS 32": "#define ASPEN_DEMANDS 16",
    },
    # What is told carries the version in each part, so that the client can see whether the parts belong together.
    "outlook.h": {
        "n = o->n <= ASPEN_OUTLOOK ? o->n : 0;\n": "n = o->n <= ASPEN_OUTLOOK ? o->n : 0;\n"
        "  struct aspen_outlook *stamped = (struct aspen_outlook *)o;\n"
        "  stamped->reserved[0] = version;\n"
        "  for (uint32_t k = 0; k < o->n_demands; k++) stamped->demand[k].reserved = version;\n"
        "  for (uint32_t k = 0; k < n; k++) stamped->rival[k].own = version;\n",
    },
    "turns.h": {"memset(t->asking, 0xff, sizeof t->asking);": "t->asking[0] = 2;"},
    # Of the clients that do not exist none is looked for.
    "table.h": {"aspen_or_seq(&c->claim.waiting[w], ~(uint64_t)0)": "aspen_or_seq(&c->claim.waiting[w], w ? 0 : (uint64_t)2)"},
    "recover.h": {
        "aspen_store_relaxed(&c->claim.waiting[w], ~(uint64_t)0)": "aspen_store_relaxed(&c->claim.waiting[w], w ? 0 : (uint64_t)2)",
        "k = 1; k < ASPEN_MAX_CLIENTS;": "k = 1; k < 2;",
        "k = 0; k < ASPEN_SLOTS;": "k = 0; k < 2;",
    },
}


def compiler() -> str:
    cc = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    assert cc, "no C compiler: install gcc, or name one in CC"
    return cc


def replace(path: Path, old: str, new: str) -> None:
    """Replaces the one occurrence of `old`: what no longer applies is an error, not a pass."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} has {text.count(old)} times: {old}"
    path.write_text(text.replace(old, new))


def sources(folder: Path, *, small: bool = True) -> Path:
    """Copies the headers and the tests' C files into one folder, where quoted includes find each other. `small`: with small tables."""
    folder.mkdir(parents=True, exist_ok=True)
    tests = [f"tests/{where}/*/*.{kind}" for where in ("stress", "crash") for kind in "hc"]
    for pattern in (
        "shm/protocol/*.h",
        "shm/protocol/system/*.h",
        "workers/engine/*.h",
        "workers/plans/*.h",
        "workers/kernels/kernel.h",
        "workers/kernels/dispatch/isa.h",
        *tests,
    ):
        for path in ROOT.glob(pattern):
            text = re.sub(r'#include "(?:\.\./)*(?:[a-z]+/)*([a-z_]+\.h)"', r'#include "\1"', path.read_text())
            (folder / path.name).write_text(text)
    for name, changes in SMALL.items() if small else ():
        for old, new in changes.items():
            replace(folder / name, old, new)
    return folder


def _compile(*arguments: object) -> None:
    command = [compiler(), *FLAGS.split(), *(str(a) for a in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


def covering(faults: Iterable[T], values: Callable[[T], Iterable[str]]) -> list[T]:
    """Those with a value that none before them has, in their order."""
    seen: set[str] = set()
    chosen = []
    for fault in faults:
        if new := set(values(fault)) - seen:
            seen |= new
            chosen.append(fault)
    return chosen


def build_checker(folder: Path, parts: Iterable[str] = ("fibers", "search", "reduction", "states")) -> list[Path]:
    """The part of the checker that is the same for every mutant."""
    objects = [folder / f"{part}.o" for part in parts]
    for out in objects:
        _compile(*CHECKER_ONLY_FLAGS.split(), "-c", "-I", folder, "-o", out, out.with_suffix(".c"))
    return objects


def compile_model(folder: Path, optimise: str = "-O2") -> list[Path]:
    """-O2 leaves the fewest remains of dead variables in registers and frames, so it has the fewest states; -O0 compiles faster."""
    objects = [folder / f"{part}.o" for part in ("model", "system", "roles")]
    for out in objects:
        _compile(*MODEL_FLAGS.split(), optimise, "-c", "-I", folder, "-o", out, out.with_suffix(".c"))
    return objects


def link_model(folder: Path, objects: Iterable[Path]) -> Path:
    program = folder / "model"
    _compile("-o", program, *objects)
    return program


def build_model(folder: Path, checker: list[Path], optimise: str = "-O2") -> Path:
    return link_model(folder, [*compile_model(folder, optimise), *checker])


def build(folder: Path, name: str) -> Path:
    """A program of one file."""
    program = folder / name
    _compile("-O1", "-pthread", "-I", folder, "-o", program, folder / f"{name}.c")
    return program


def build_storm(folder: Path, name: str, optimise: str = "-O2") -> Path:
    """`storm` or `points`, with a crash point at every atomic operation."""
    program = folder / name
    _compile(optimise, "-pthread", "-DASPEN_CRASH_POINTS", "-I", folder, "-o", program, folder / f"{name}.c")
    return program
