"""The scheduler's own headers under the model checker (model.c): every interleaving of two DSEs, a client and a planner process over a
small tile graph, without a bound. Planted faults must be found, and the checker's reduction must lose nothing.

With "deaths" workers are killed at any step, the planner process recovers, and new workers come.
"tso": stores may be late, as on x86; its schedules without late stores are those of sequentially consistent memory.
"compare": search with and without reduction, and compare what the fibers get to see.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import cbuild
import pytest
from planted import MUTANTS, REDUCTION

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
WATCHDOG = 3600 if LONG else 1500
T = TypeVar("T")
# Whoever seeds the first request meets nobody there: the others sleep.
UNSEEN = {"goes on seeding when it has parked"}

# Longest first.
SCENARIOS = [
    *("attach", "pair", "fault", "diamond", "lazy", "single", "scribble"),
    *("diamond shares", "pair shares"),
]
SCENARIOS_LONG = ["cancel", "bequeath", "again"]
CROWDED = "crowded"
"""Word of a scenario: rows keep the tiles of one request only apart, so those of two share a lane."""
LENDING = "lending"
"""Word of a scenario: tiles of lower classes always go first, as if it were always their turn."""
WORDS = {
    CROWDED: ("layout.h", "#define ASPEN_LANES 2", "#define ASPEN_LANES 1"),
    LENDING: ("numbers.h", "#define ASPEN_LENT 32", "#define ASPEN_LENT 0"),
}
"""What is changed for a word."""
CLASSES = ["beside classes workers=1 deaths=2"]
HINTS = ["beside nonsense workers=1 deaths=2"]
CLASSES_LONG = ["beside classes settled", "beside classes impatient settled", "rush-lazy classes settled"]
HINTS_LONG = ["beside hints settled"]
STREAMS = ["stream settled", "stream workers=1 deaths=1 scribbles", "stream-still workers=1 deaths=1 scribbles"]
STREAMS_LONG = [
    *("stream workers=1 deaths=2 scribbles", "stream-three workers=1 deaths=1 scribbles", "stream-cancel workers=1 deaths=1 scribbles"),
    *("stream", "stream-still", "stream-cancel settled", "stream-cancel workers=1 deaths=2 scribbles"),
    *("stream settled lone deaths=1,1 scribbles", "stream-still settled lone deaths=1,1 scribbles"),
]
LONGER = [
    "later",
    "sooner",
    "refused settled",
    "beside",
    "queued",
    "leave",
    "drop-data",
    "announce",
    "relay",
    "drop",
    "rush",
    "recancel",
    "drop-client",
    "spoil",
    "hold",
]
DEATHS = [
    *("diamond workers=1 deaths=2 early", "queued workers=1 deaths=2"),
    *("again workers=1 deaths=3 scribbles", "cancel workers=1 deaths=2", "recancel workers=1 deaths=1"),
    *("fault workers=1 deaths=2", "attach workers=1 deaths=2", "announce workers=1 deaths=2"),
    *("retimed workers=1 deaths=1", "refused workers=1 deaths=1", "diamond settled lone deaths=1,1"),
]
DEATHS_LATER = [
    *("beside workers=1 deaths=2", "later workers=1 deaths=2", "sooner workers=1 deaths=2"),
    *("diamond workers=1 deaths=4", "chain settled lone deaths=2,2"),
    *("beside classes impatient workers=1 deaths=2", "beside hints workers=1 deaths=2"),
]
DEATHS_LONG = [
    *("single deaths=1,0", "chain deaths=1,1", "single deaths=1,1", "single deaths=2,0", "single deaths=0,2"),
    *("diamond settled lone workers=3 deaths=1,0,0", "chain settled lone workers=3 deaths=1,1,0"),
    *(f"chain settled lone workers=3 deaths={who}" for who in ("1,0,0", "0,1,0", "0,0,1")),
    *("diamond deaths=1,0", "pair deaths=1,0", "single deaths=0,1", "single deaths=1,0 scribbles"),
]
BEGUN = [*SCENARIOS_LONG, *LONGER, "single deaths=1,0", *CLASSES_LONG, *HINTS_LONG, "stream-cancel settled"]
LONGEST = SCENARIOS_LONG + LONGER + DEATHS_LATER + DEATHS_LONG + CLASSES_LONG + HINTS_LONG + STREAMS_LONG
COMPARED = [
    *(["stream workers=1 deaths=1 scribbles"] if LONG else []),
    "chain settled lone deaths=1,0",
    "diamond workers=1 deaths=2",
    "cancel workers=1 deaths=1",
    "scribble",
    "single",
]
COMPARED_LONG = [
    *("pair", "lazy"),
    "single settled lone deaths=1,1",
    "scribble deaths=1,0",
    "drop-data",
    "queued",
    "leave",
    "bequeath",
    "attach",
    "fault",
    "diamond",
]


def compiled(folder: Path, checker: list[Path], scenario: str, changes: Sequence[tuple[str, str, str]] = (), optimise: str = "-O2") -> Path:
    """The model with `changes` (file, old, new) for a scenario."""
    cbuild.sources(folder)
    for name, old, new in [*changes, *(WORDS[word] for word in scenario.split() if word in WORDS)]:
        cbuild.replace(folder / name, old, new)
    return cbuild.build_model(folder, checker, optimise)


def run(model: Path, scenario: str) -> subprocess.CompletedProcess[str]:
    words = [word for word in scenario.split() if word not in WORDS]
    return subprocess.run([str(model), *words], capture_output=True, text=True, check=False, timeout=WATCHDOG)


def also_found_by(what: str, scenario: str) -> list[str]:
    """The scenario of two deaths that must show the fault, too, where one death does: that it is small must not make it blind."""
    if "deaths=1,0" not in scenario or what in UNSEEN:
        return []
    return [f"{scenario.replace('single', 'diamond').replace('deaths=1,0', 'deaths=1,1')} settled lone"]


def complaints(check: Callable[[T], str], cases: Iterable[T]) -> list[str]:
    """What is wrong with the cases: as many at a time as there are processors."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [complaint for complaint in pool.map(check, cases) if complaint]


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return cbuild.build_checker(cbuild.sources(tmp_path_factory.mktemp("checker")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, checker: list[Path]) -> Path:
    return cbuild.build_model(cbuild.sources(tmp_path_factory.mktemp("model")), checker)


def test_no_interleaving_goes_wrong(model: Path) -> None:
    def check(scenario: str) -> str:
        done = run(model, f"{scenario} tso")
        print(f"{scenario}: {done.stdout}", end="", file=sys.stderr)
        return "" if done.returncode == 0 and "exhausted: " in done.stdout else f"{scenario}: {done.stdout}{done.stderr}"

    wrong = complaints(check, (LONGEST if LONG else []) + DEATHS + CLASSES + HINTS + STREAMS + SCENARIOS)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("scenario", BEGUN)
def test_longer_ones_begin_well(model: Path, scenario: str) -> None:
    """Thousands of random executions, and the first states of the search: what the long tier exhausts is not left alone until then."""
    done = run(model, f"{scenario} tso 200000")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "stopped: " in done.stdout


def test_requests_that_share_a_lane_begin_well(tmp_path: Path, checker: list[Path]) -> None:
    for scenario in ("beside crowded tso", "rush crowded shares tso"):
        done = run(compiled(tmp_path / scenario.replace(" ", "-"), checker, scenario), f"{scenario} 100000")
        assert done.returncode == 2, done.stdout + done.stderr
        assert "stopped: " in done.stdout


def test_lower_classes_that_get_their_share(tmp_path: Path, checker: list[Path]) -> None:
    """Exhausted with one worker; with two it begins well."""
    model = compiled(tmp_path / LENDING, checker, f"beside {LENDING}")
    done = run(model, "beside classes workers=1 deaths=2 tso")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exhausted: " in done.stdout
    done = run(model, "beside classes settled tso 200000")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "stopped: " in done.stdout


def test_reduction_loses_nothing(model: Path) -> None:
    def check(scenario: str) -> str:
        done = run(model, f"{scenario} tso compare")
        print(f"{scenario}: {done.stdout}", end="", file=sys.stderr)
        return "" if done.returncode == 0 and "; 0 lost, 0 gained" in done.stdout else f"{scenario}: {done.stdout}{done.stderr}"

    wrong = complaints(check, (COMPARED_LONG if LONG else []) + COMPARED)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("area", MUTANTS)
def test_planted_faults_are_found(tmp_path: Path, checker: list[Path], area: str) -> None:
    """All are planted. Looked for is, but in the long tier, the first fault of each header and of each scenario."""
    looked_for = MUTANTS[area] if LONG else cbuild.covering(MUTANTS[area], lambda mutant: (mutant[1], mutant[4]))
    for what, name, old, new, _ in MUTANTS[area]:
        cbuild.replace(cbuild.sources(tmp_path / "planted" / what.replace(" ", "-")) / name, old, new)

    def check(mutant: tuple[str, str, str, str, str]) -> str:
        what, name, old, new, scenario = mutant
        if LONG and "walks=" not in scenario and "deaths=" not in scenario:
            scenario += " walks=0"  # by the search itself: random executions, with which it begins, find most of them
        program = compiled(tmp_path / what.replace(" ", "-"), checker, scenario, [(name, old, new)], "-O0")
        for one in [scenario, *(also_found_by(what, scenario) if LONG else ())]:
            done = run(program, one)
            if done.returncode != 1 or "VIOLATION" not in done.stdout:
                return f"{what}: not found by {one}\n{done.stdout}{done.stderr}"
        return ""

    wrong = complaints(check, looked_for)
    assert not wrong, "\n".join(wrong)


def test_a_reduction_that_leaves_out_too_much_is_noticed(tmp_path: Path) -> None:
    others = cbuild.sources(tmp_path / "others")
    objects = cbuild.build_checker(others, ("fibers", "search", "states")) + cbuild.compile_model(others)

    def check(fault: tuple[str, str, str, str]) -> str:
        what, old, new, scenario = fault
        folder = cbuild.sources(tmp_path / what.replace(" ", "-"))
        cbuild.replace(folder / "reduction.c", old, new)
        done = run(cbuild.link_model(folder, [*objects, *cbuild.build_checker(folder, ["reduction"])]), f"{scenario} compare")
        return "" if done.returncode == 1 else f"{what}: not noticed by {scenario}\n{done.stdout}{done.stderr}"

    wrong = complaints(check, REDUCTION)
    assert not wrong, "\n".join(wrong)
