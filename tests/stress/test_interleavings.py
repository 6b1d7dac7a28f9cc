"""The scheduler's own headers under the model checker (model.c): every interleaving of two DSEs, a client and a planner process over a
small tile graph, on x86's memory model where that matters, with as many preemptions as the time allows. Planted faults must be found."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG = os.environ.get("ASPEN_MP_TIER") == "long"
FLAGS = "-std=gnu11 -O2 -fno-inline -fno-stack-protector -ftrivial-auto-var-init=zero -w -DASPEN_MODEL_CHECK -DASPEN_LAYOUT_HASH=1ull"
MOST_STATES = 20_000_000

# Scenario, memory model, preemptions a schedule may have.
SCENARIOS = [
    ("diamond", "tso", 2),
    ("diamond", "sc", 3),
    ("fault", "sc", 3),
    ("again", "sc", 2),
    ("queued", "sc", 2),
    ("beside", "sc", 1),
    ("cancel", "tso", 1),
    ("leave", "tso", 1),
    ("attach", "tso", 1),
]
LONGER = [("diamond", "tso", 3), ("fault", "tso", 3), ("queued", "sc", 3), ("leave", "sc", 3), ("cancel", "sc", 3), ("attach", "sc", 2)]

# What is broken, where, which line becomes what, and the scenario that shows it.
FAULTS = {
    "sleep without a second look": ("workers/dse.h", "if (!aspen_dse_work(d)) {", "if (1) {", ("diamond", "tso", 2)),
    "row lock that is none": (
        "shm/pool.h",
        "const struct aspen_user *u) {\n  uint32_t turns = 0;",
        "const struct aspen_user *u) {\n  return ASPEN_OK;\n  uint32_t turns = 0;",
        ("diamond", "tso", 1),
    ),
    "freed instance that nobody is told of": (
        "shm/complete.h",
        "aspen_add_seq(&s->control->claim.wanted, 1); /* a request may wait",
        "/* a request may wait",
        ("queued", "sc", 2),
    ),
    "emptied column that stays marked": (
        "shm/pool.h",
        "aspen_store_relaxed(&row->mask, mask & ~((uint64_t)1 << column));",
        "(void)0;",
        ("diamond", "sc", 1),
    ),
    "child run at its first parent": (
        "workers/dse.h",
        "if (aspen_sub_acq_rel(&v->missing[child], 1) != 1) continue;",
        "aspen_sub_acq_rel(&v->missing[child], 1);",
        ("diamond", "sc", 1),
    ),
}


def build(tree: Path, out: Path) -> Path:
    includes = ["-I", str(tree / "shm"), "-I", str(tree / "workers"), "-I", str(tree / "workers/kernels")]
    source = Path(__file__).with_name("model.c")
    subprocess.run([os.environ.get("CC", "cc"), *FLAGS.split(), *includes, str(source), "-o", str(out)], check=True)
    return out


def check(program: Path, scenario: tuple[str, str, int]) -> subprocess.CompletedProcess[str]:
    name, memory, bound = scenario
    arguments = [name, *(["tso"] if memory == "tso" else []), f"bound={bound}", str(MOST_STATES)]
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("model") / "model")


@pytest.mark.parametrize("scenario", SCENARIOS + (LONGER if LONG else []), ids=lambda s: f"{s[0]}-{s[1]}-{s[2]}")
def test_no_interleaving_goes_wrong(model: Path, scenario: tuple[str, str, int]) -> None:
    run = check(model, scenario)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "ways to rest" in run.stdout


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_planted_fault_is_found(fault: str, tmp_path: Path) -> None:
    file, old, new, scenario = FAULTS[fault]
    for folder in ("shm", "workers", "workers/kernels"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for header in (ROOT / folder).glob("*.h"):
            shutil.copy(header, tmp_path / folder)
    text = (tmp_path / file).read_text()
    assert text.count(old) == 1, f"{file} no longer holds the line that this fault breaks"
    (tmp_path / file).write_text(text.replace(old, new))
    run = check(build(tmp_path, tmp_path / "model"), scenario)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "VIOLATION" in run.stdout
