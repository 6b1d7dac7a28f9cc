"""The benchmarks that draw figures: each command end to end on something tiny, and the arithmetic behind their verdicts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from aspen_mp.bench import models
from aspen_mp.bench.figures import barriers, compare, hetero, lengths, order, scaling, simulated, sizes, stacks, synthetic, tiles
from aspen_mp.bench.figures.compare import Comparison, Entry
from aspen_mp.bench.figures.seats import OURS, Rounds, Schedule, Variant, wanted_engines
from aspen_mp.bench.figures.states import middle, states
from aspen_mp.bench.peers.cases import Case, parse
from aspen_mp.bench.peers.engines import MEMORY_BYTES, REQUESTS
from aspen_mp.bench.peers.seat import Turn
from aspen_mp.bench.peers.streams import Streams
from aspen_mp.bench.records import record
from aspen_mp.bench.render import published

TINY = "aspen32@layers=3,image=16x16,channels=32"
TEXTS = "layers=2,hidden=64,heads=4,vocab=101"
QUICK = ("--rounds", "1", "--seconds", "0", "--runs", "1")
CORES = len(os.sched_getaffinity(0))


def figure(tmp_path: Path, *arguments: str, quick: Sequence[str] = QUICK) -> Any:
    """The result that a command records for its only network; its picture is there."""
    picture = tmp_path / "figure.png"
    (network,) = recorded(tmp_path, *arguments, *quick, "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    return network


def recorded(tmp_path: Path, *arguments: str) -> Any:
    """The result that a command records, as its benchmark's own type."""
    document = tmp_path / "figure.json"
    command = [sys.executable, "-m", "aspen_mp.cli", "bench", *arguments, "-o", str(document), "--keep-disturbed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=300)
    assert done.returncode == 0, done.stderr
    found = record.load(document, published.RESULTS[arguments[0]])
    assert found.benchmark == arguments[0]
    assert found.command.startswith(f"aspen-mp bench {arguments[0]}")
    assert "--plot" not in found.command
    return found.result


def test_barriers(tmp_path: Path) -> None:
    found = figure(tmp_path, "barriers", TINY)
    assert [entry.label for entry in found.entries] == ["no barriers", "barriers"]
    assert all(entry.cores == CORES for entry in found.entries)
    assert "operator barriers change the time by" in barriers.verdict(found)


def test_order(tmp_path: Path) -> None:
    found = figure(tmp_path, "order", TINY)
    assert [entry.label for entry in found.entries] == ["fifo", "lifo", "random"]
    assert set(found.simulated) == {"fifo", "lifo", "random", "layer"}


def test_tiles(tmp_path: Path) -> None:
    found = figure(tmp_path, "tiles", TINY, "--tiles", "1,8")
    assert [entry.label for entry in found.entries] == ["automatic", "1", "8"]


def test_synthetic(tmp_path: Path) -> None:
    sizes = ("--layers", "3", "--height", "16", "--width", "12", "--channels", "32")
    found = figure(tmp_path, "synthetic", *sizes, "--engines", "onnxruntime,aspen-mp")
    assert found.case == "aspen32@layers=3,image=16x12,channels=32"
    assert found.macs == 3 * 16 * 12 * 32 * 32 * 9
    assert [entry.label for entry in found.entries][:2] == ["aspen-mp", "onnxruntime"]


def test_stacks(tmp_path: Path) -> None:
    shapes = ("--blocks", "1,4", "--shapes", "2x16x9x7", "--steps", "3,9", "--engines", "onnxruntime,aspen-mp")
    found = recorded(tmp_path, "stacks", *shapes, "sppf@channels=16,image=9", *QUICK, "--plot", str(tmp_path / "stacks.svg"))
    first, second, labels = [OURS, stacks.LAYERS], [stacks.with_steps(3), stacks.with_steps(9)], ["onnxruntime"]
    (chain,) = found.chains
    assert chain.shape == (2, 16, 9, 7)
    assert [point.blocks for point in chain.points] == [1, 4]
    measured = [[entry.label for entry in result.entries] for result in found.comparisons]
    assert measured == [first + labels, [*first, second[0], *labels], first + second + labels], "limits that chains can exceed"
    assert [result.case for result in found.networks] == ["sppf@channels=16,image=9"]
    assert not found.layers
    assert all(label in (tmp_path / "stacks.svg").read_text() for label in [*first, second[0], *labels])


def test_stacks_of_batches(tmp_path: Path) -> None:
    found = recorded(tmp_path, "stacks", TINY, f"{TINY},batch=3", "--batches", "1,3", "--engines", "aspen-mp", *QUICK)
    assert [result.case for result in found.networks] == [TINY, f"{TINY.replace('@', '@batch=3,')}"]
    assert not found.chains


def test_chains_are_those_of_the_paper() -> None:
    assert [*stacks.BLOCKS][:3] == [1, 2, 4]
    assert len(stacks.BLOCKS) == 21
    assert stacks.BLOCKS[-1] == 40
    assert [parse(network).label for network in stacks.NETWORKS] == list(stacks.NETWORKS)
    for shape in stacks.SHAPES:
        case = stacks.case_of(shape, 3)
        assert parse(case.label) == case
        (given,) = models.describe(case.network, batch=case.batch, **case.options).inputs
        assert given == ("input", shape, "float32")


def test_layers_of_networks(tmp_path: Path) -> None:
    found = recorded(tmp_path, "stacks", "--table", "mobilenet_v2@image=64")
    assert [row.case for row in found.layers] == ["mobilenet_v2@image=64"]
    assert not found.comparisons


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--shapes", "1x64x224"], "'1x64x224' is not a shape of an image"),
        (["--shapes", "1x64x0x224"], "is not a shape of an image"),
        (["--blocks", "0"], "has a number below 1"),
        (["--table", "--plot", "table.png"], "a table has no picture"),
        (["--engines", "abacus"], "there is no engine"),
    ],
)
def test_stacks_of_nothing(arguments: list[str], says: str) -> None:
    command = [sys.executable, "-m", "aspen_mp.cli", "bench", "stacks", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=300)
    assert done.returncode == 2
    assert says in done.stderr


def test_scaling(tmp_path: Path) -> None:
    found = figure(tmp_path, "scaling", TINY, "--engines", "aspen-mp,onnxruntime", "--simulate", "64", "--apart", "--in-flight", "1,3")
    measured = [(p.engine, p.cores) for p in found.points if not p.simulated]
    apart = {(scaling.APART, CORES)} if CORES > 1 else set()
    assert {("aspen-mp", 1), ("aspen-mp", CORES), ("onnxruntime", 1), ("onnxruntime", CORES)} | apart == set(measured)
    assert [p.cores for p in found.points if p.simulated] == [64]
    assert [(p.cores, p.in_flight) for p in found.at_once] == [(64, 1), (64, 3)]
    assert all(1 <= p.team <= 64 and p.latency > 0 and p.throughput > 0 for p in found.at_once)
    assert [m.cores for m in found.memory] == sorted({1, CORES})
    assert all(m.best_gb_s >= m.gb_s > 0 for m in found.memory)


def test_hetero(tmp_path: Path) -> None:
    if CORES < 2:
        with pytest.raises(AssertionError, match="two CPUs are needed"):
            figure(tmp_path, "hetero", TINY)
        return
    found = figure(tmp_path, "hetero", TINY, "--engines", "aspen-mp", "--speeds", "1,0.5", "--settle", "0.1", "--apart")
    full, half = found.points
    assert (full.wanted, half.wanted) == (1, 0.5)
    assert not full.left
    assert 0 < half.left[0] < 1
    assert half.taken[0] > 0, "the load ran while it was measured"
    assert full.fraction > 0
    assert min(full.apart, half.apart) > 0
    for point in found.points:
        memory = point.memory
        assert memory.one_gb_s > 0 < memory.all_gb_s
        assert memory.speed == pytest.approx(point.slow / point.fast, rel=1e-4)
        assert min(memory.fraction, memory.unlimited) > 0


def test_lengths(tmp_path: Path) -> None:
    options = ("--requests", "6", "--least", "3", "--most", "9", "--threads", "1", "--engines", "aspen-mp,onnxruntime")
    found = figure(tmp_path, "lengths", f"bert_base@{TEXTS}", *options, quick=())
    assert found.case == f"bert_base@{TEXTS}, 3 to 9 tokens"
    assert len(found.cores) == 1
    assert len(found.lengths) == 6
    assert all(3 <= n <= 9 for n in found.lengths)
    assert [e.engine for e in found.found] == ["aspen-mp", "onnxruntime"]
    for e in (engine.document() for engine in found.found):
        assert len(e["requests_ms"]) == 6
        assert e["total_s"] == pytest.approx(sum(e["requests_ms"]) / 1e3)
        assert e["min_ms"] == min(e["requests_ms"][3:]) <= e["median_ms"] <= e["longest_ms"] == max(e["requests_ms"])
        assert (e["tokens"], e["prompt_ms"]) == ([], None)
    assert set(found.ratios()) == {"onnxruntime"}
    assert found.same_tokens is None
    assert not found.failed


def test_sizes(tmp_path: Path) -> None:
    options = ("--requests", "5", "--least", "33", "--most", "64", "--threads", "1", "--engines", "aspen-mp,onnxruntime")
    found = figure(tmp_path, "sizes", "resnet18@image=64", "--rounds", "2", *options, quick=())
    assert found.case == "resnet18, sides 33 to 64"
    assert len(found.sizes) == 5
    assert all(33 <= side <= 64 for size in found.sizes for side in size)
    for e in found.found:
        assert len(e.seconds) == 10
        assert found.new(e) + found.again(e) == e.seconds
    assert set(found.ratios()) == {"onnxruntime"}
    assert not found.failed
    assert [len(each) for each in (found.found, *found.repeats)] == [2, 2]
    assert [(m.engine, m.rounds) for m in found.medians] == [(e.engine, 2) for e in found.found]


def test_medians_of_sizes() -> None:
    """Of rounds; the first two requests count by themselves, and rounds in which an engine failed do not."""
    rounds = [[90, 50, 2, 4, 3, 1, 2, 2, 2, 1], [70, 10, 4, 6, 5, 2, 2, 4, 4, 3], [80, 30, 3, 3, 3, 1, 1, 3, 3, 3], [9, 9, 9]]
    first, *repeats = [[lengths.Found(OURS, "1", "", 0.0, [ms / 1e3 for ms in each])] for each in rounds]
    result = sizes.SizesResult("x", [0], [1] * 5, first, sizes=[(1, 1)] * 5, repeats=repeats)
    (found,) = result.summary()
    assert (found.engine, found.rounds) == (OURS, 3)
    assert [found.first_ms, found.second_ms, found.new_ms, found.again_ms] == pytest.approx([80, 30, 3, 3])
    assert [found.new_s, found.again_s] == pytest.approx([0.119, 0.011])
    assert found.new_by_again == pytest.approx(5 / 3)


def test_steps_of_a_decoder(tmp_path: Path) -> None:
    case = f"smollm2_135m@{TEXTS},inner=96,kv_heads=2"
    found = figure(tmp_path, "lengths", case, "--decode", "4", "--engines", "onnxruntime,aspen-mp", quick=())
    assert found.case == f"{case}, 4 steps"
    assert found.lengths == [10, 11, 12, 13, 14]
    assert found.same_tokens == 5
    for e in (engine.document() for engine in found.found):
        assert len(e["tokens"]) == len(e["requests_ms"]) == 5
        assert e["prompt_ms"] == e["requests_ms"][0]
        assert e["total_s"] == pytest.approx(sum(e["requests_ms"][1:]) / 1e3)
        assert e["min_ms"] == min(e["requests_ms"][1:])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["resnet18"], "reads no text"),
        (["bert_base", "--decode", "3"], "has no cache"),
        (["--least", "9", "--most", "8"], "no length is from 9 to 8"),
        (["--engines", "abacus"], "there is no engine"),
    ],
)
def test_lengths_of_nothing(arguments: list[str], says: str) -> None:
    command = [sys.executable, "-m", "aspen_mp.cli", "bench", "lengths", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=300)
    assert done.returncode == 2
    assert says in done.stderr


# ------------------------------------------------------------------------------------------------------------------------- arithmetic


def entry(label: str, engine: str, cores: int, ratio: float, ratio_min: float) -> Entry:
    return Entry(label, engine, cores, 100 * ratio, 90 * ratio_min, ratio, ratio_min)


def test_parallel_fractions_are_those_of_the_planner() -> None:
    entries = [entry("a on 1", OURS, 1, 1.0, 1.0), entry("a on 2", OURS, 2, 0.5, 0.5), entry("a on 4", OURS, 4, 1.0, 0.1 + 0.9 / 4)]
    points = scaling.of_comparison(Comparison("x", None, entries)).points
    assert [p.p_e for p in points] == [None, pytest.approx(1.0), pytest.approx(0.0)]
    assert [p.p_e_min for p in points] == [None, pytest.approx(1.0), pytest.approx(0.9)]


def test_the_middle_of_an_even_number_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drifting(Played):
        def rounds(self, schedule: Schedule, what: str = "", beside: object = None, probe: object = None) -> Rounds:
            return Rounds([{v.label: Turn([seconds]) for v in self.variants} for seconds in (0.01, 0.02)], 0, 0, {})

    monkeypatch.setattr(compare, "Seats", Drifting)
    found = compare.compare(Case("tcn"), [Variant("1", OURS, [0])], Schedule(rounds=2), print)
    assert found["1"].median_ms == pytest.approx(15)


def test_the_best_serial_run_counts_whoever_has_it() -> None:
    entries = [entry("a on 1", OURS, 1, 1.0, 1.0), entry("a on 2", OURS, 2, 0.5, 0.6)]
    entries += [entry("b on 1", "onnxruntime", 1, 0.8, 1.1), entry("b on 2", "onnxruntime", 2, 0.8, 0.6)]
    found = scaling.of_comparison(Comparison("x", None, entries))
    assert (found.serial, found.serial_ms) == ("onnxruntime", pytest.approx(80))
    assert [p.speedup for p in found.points] == pytest.approx([0.8, 1.6, 1.0, 1.0])
    assert [p.speedup_min for p in found.points] == pytest.approx([1.0, 1 / 0.6, 1 / 1.1, 1 / 0.6])
    assert found.points[1].p_e == pytest.approx(1 - (1 / 1.6 - 0.5) / 0.5)
    assert "p_e on 2 cores aspen-mp 0.750" in found.verdict
    assert found.far is None
    assert "another core's byte" not in found.verdict, "nobody looked"
    entries[1].probes[:] = [(0.012, 0.014), (0.012, 0.016)]
    found = scaling.of_comparison(Comparison("x", None, entries))
    assert found.far == pytest.approx(0.013)
    assert "another core's byte takes 0.013 ns longer" in found.verdict


def test_ratios_of_stacks_are_ours_by_others() -> None:
    def chains(blocks: int, ours: float) -> stacks.Point:
        entries = [entry(label, OURS, 2, ratio * ours, ratio * ours) for label, ratio in ((OURS, 1.0), (stacks.LAYERS, 2.0))]
        entries += [entry("onnxruntime", "onnxruntime", 2, 4.0 * ours, 4.0), entry("torch", "torch", 2, 10.0 * ours, 10.0)]
        for each in entries:
            each.ratio /= ours
        return stacks.Point(blocks, Comparison("x", None, entries))

    chain = stacks.Chain((1, 64, 5, 7), [chains(1, 0.9), chains(10, 1.0), chains(4, 0.5)])
    longest = chain.points[1]
    assert [stacks.ours_by(longest.found, label) for label in chain.labels] == [None, 0.5, 0.25, 0.1]
    assert stacks.ours_by_fastest(longest.found) == 0.25
    assert longest.per_block(OURS) == pytest.approx(10)
    assert chain.unevenness == pytest.approx(0.25), "one block alone is not looked at"
    assert stacks.chain_verdict(chain) == (
        "1×64×5×7, 10 blocks, 2 workers: our time is 0.50 of aspen-mp layer by layer, 0.25 of onnxruntime, 0.10 of torch; "
        "from 4 blocks on, times of a block differ by 25%"
    )
    alone = Comparison("y", None, longest.found.entries[2:])
    assert stacks.ours_by_fastest(alone) is None
    assert stacks.verdict(alone) == "y: nothing was compared"


def test_requests_apart_count_each() -> None:
    entries = [entry("a on 1", OURS, 1, 1.0, 1.0), entry("a on 4", OURS, 4, 0.4, 0.3), entry(f"{scaling.APART} on 4", OURS, 4, 1.25, 1.0)]
    found = scaling.of_comparison(Comparison("x", None, entries))
    assert [(p.engine, p.cores) for p in found.points] == [(OURS, 1), (OURS, 4), (scaling.APART, 4)]
    assert found.points[2].ms == pytest.approx(100 * 1.25 / 4)
    assert found.points[2].speedup == pytest.approx(3.2)
    assert found.points[2].p_e_min == pytest.approx(1.0)


def test_memory_is_no_serial_run() -> None:
    reads = {1: 0.02, 2: 0.032}  # seconds, of which the second reads twice as much
    entries = [entry("a on 1", OURS, 1, 1.0, 1.0), entry("a on 2", OURS, 2, 0.6, 0.6)]
    entries += [entry(f"memory on {n}", "memory", n, s, s / 2) for n, s in reads.items()]
    found = scaling.of_comparison(Comparison("x", None, entries))
    assert (found.serial, [p.engine for p in found.points]) == (OURS, [OURS, OURS])
    gb_s = [n * MEMORY_BYTES / (100 * s) / 1e6 for n, s in reads.items()]
    assert [m.gb_s for m in found.memory] == pytest.approx(gb_s)
    found.memory[1].p_e, found.memory[1].p_e_unlimited = 0.7, 0.95
    assert f"memory: {gb_s[0]:.0f} on 1 and {gb_s[1]:.0f} on 2, GB/s, leave p_e 0.700 by simulation, 0.950 without" in found.verdict


def test_one_state_of_the_machine() -> None:
    (only,) = states([[0.006, 0.007], [0.009, 0.006], [0.008, 0.007]] * 7 + [[0.007, 0.05]])
    assert only.far == pytest.approx(0.007)
    assert only.holds([0.05, 0.0])
    assert not only.holds([]), "nothing was measured"
    assert states([[0.0, 0.0]])[0].far == 0
    assert states([]) == states([[], []]) == []
    assert middle([]) is middle([[], []]) is None
    assert middle([[0.006, 0.007], [0.009], []]) == 0.007


def test_two_states_of_the_machine() -> None:
    near, far = states([[0.006, 0.007], [0.037, 0.036], [0.007, 0.036], [0.015, 0.007]] * 3)
    assert (near.far, far.far) == (pytest.approx(0.007), pytest.approx(0.036))
    assert [near.holds(row) for row in ([0.006, 0.008], [0.006, 0.037], [0.0, 0.015])] == [True, False, False]
    assert [far.holds(row) for row in ([0.04, 0.036], [0.006, 0.037], [0.037, 0.02])] == [True, False, False]


def test_fractions_by_state() -> None:
    near, far, changing = (0.007, 0.007), (0.037, 0.037), (0.007, 0.037)
    rounds = {
        ("a on 1", OURS, 1): ([10.0, 12.0, 11.0, 10.0], [near, far, changing, near]),
        ("a on 2", OURS, 2): ([5.0, 9.0, 7.0, 9.0], [near, far, near, far]),
        ("b on 1", "b", 1): ([20.0, 6.0, 99.0, 6.0], [near, far, changing, far]),
        ("memory on 2", "memory", 2): ([40.0, 20.0, 20.0, 30.0], [near, far, far, changing]),
    }
    entries = [Entry(*who, 1.0, 1.0, 1.0, 1.0, ms, ms, probes) for who, (ms, probes) in rounds.items()]
    comparison = Comparison("x", None, entries)
    first, second = scaling.of_comparison(comparison).states
    assert (first.far, first.turns, first.p_e) == (0.007, {OURS: 2}, {OURS: pytest.approx(1 - (6 / 10 - 0.5) / 0.5)})
    assert (second.far, second.turns, second.p_e) == (0.037, {OURS: 2}, {OURS: pytest.approx(1 - (9 / 6 - 0.5) / 0.5)})
    assert second.gb_s == pytest.approx(2 * MEMORY_BYTES / 20e6)
    verdict = scaling.of_comparison(comparison).verdict
    assert "with 0.007 ns for another core's byte and 27 GB/s of memory: aspen-mp 0.800 in 2 turns; with 0.037 ns" in verdict
    assert [comparison.medians_in(state)["b on 1"] for state in comparison.states] == [20.0, 6.0]


def test_unlike_cores_by_state() -> None:
    def turns(both: float, *probes: float) -> dict[str, Turn]:
        seconds = {hetero.FAST: 0.1, hetero.SLOW: 0.2, hetero.BOTH: both}
        return {f"a, {label}": Turn([s], probes=probes) for label, s in seconds.items()}

    near, far = turns(1 / 15, 0.006, 0.006), turns(1 / 12, 0.037, 0.037)
    point = hetero._point("a", 0.5, [], [], Rounds([near, far, near, turns(1 / 9, 0.006, 0.037)] * 3, 0, 0, {}))
    assert [(state.turns, state.fraction) for state in point.states] == [(6, pytest.approx(1.0)), (3, pytest.approx(0.8))]
    verdict = hetero.HeteroResult("x", [0], [1], "fifo", [point]).verdict
    assert "a reaches 0.90 at speed 0.5 (1.00 in 6 turns with 0.006 ns for another core's byte, 0.80 in 3 turns" in verdict
    near_alone = hetero._point("a", 0.5, [], [], Rounds([near] * 3, 0, 0, {}))
    assert (near_alone.states, near_alone.far) == ([], 0.006)
    assert point.apart is None
    assert not hetero._point("a", 0.5, [], [], Rounds([near] * 4 + [far] * 2, 0, 0, {})).states, "too few"


def test_unlike_cores_apart() -> None:
    """Of requests that all cores serve at the same time, so many as were counted."""
    turns = {f"a, {label}": Turn([s]) for label, s in {hetero.FAST: 0.1, hetero.SLOW: 0.2, hetero.BOTH: 1 / 12}.items()}
    turns[f"a, {hetero.APART}"] = Turn([0.5, 0.5], counters={REQUESTS: 13.5})
    point = hetero._point("a", 0.5, [], [], Rounds([turns] * 3, 0, 0, {}))
    assert (point.fraction, point.apart) == (pytest.approx(0.8), pytest.approx(0.9))
    assert (
        "a reaches 0.80 at speed 0.5. With a request on each core at once: 0.90 at speed 0.5."
        in hetero.HeteroResult("x", [0], [1], "fifo", [point]).verdict
    )
    near, far = ({k: Turn(t.seconds, counters=t.counters, probes=(p, p)) for k, t in turns.items()} for p in (0.006, 0.037))
    states = hetero._point("a", 0.5, [], [], Rounds([near, far] * 3, 0, 0, {})).states
    assert [state.apart for state in states] == [pytest.approx(0.9)] * 2


def test_what_memory_leaves_of_unlike_cores() -> None:
    """By the median of what was read, for the speed that the slow core had."""
    asked = []

    class Asked:
        def share(self, *what: float) -> tuple[float, float]:
            asked.append(what)
            return 0.75, 0.95

    turns = {f"a, {label}": Turn([s]) for label, s in {hetero.FAST: 0.1, hetero.SLOW: 0.25, hetero.BOTH: 0.09}.items()}
    point = hetero._point("a", 0.5, [], [], Rounds([turns] * 3, 0, 0, {}))
    assert point.memory is None
    reads = [
        {f"memory, {hetero.FAST}": Turn([one]), f"memory, {hetero.BOTH}": Turn([both])} for one, both in ((1, 1), (0.5, 0.8), (0.4, 0.4))
    ]
    gb_s = [hetero._gb_s(Rounds(reads, 0, 0, {}), label, n) for label, n in ((hetero.FAST, 1), (hetero.BOTH, 2))]
    assert gb_s == [pytest.approx(MEMORY_BYTES / 0.5e9), pytest.approx(2 * MEMORY_BYTES / 0.8e9)]
    point.memory = hetero._memory(Asked(), point, 20.0, 30.0, 1, 1)  # type: ignore[arg-type]
    assert asked == [(1, 1, pytest.approx(0.4), 1.5)]
    verdict = hetero.HeteroResult("x", [0], [1], "fifo", [point]).verdict
    assert "By simulation 0.75 at speed 0.5, because one core reads 20 GB/s of memory and all cores 30; 0.95 without that limit." in verdict


def test_simulated_shares_of_unlike_cores() -> None:
    network = simulated.SimulatedNetwork(parse(TINY))
    limited, unlimited = network.share(1, 1, 0.5, 1.0)
    assert 0 < limited <= unlimited + 1e-9
    assert unlimited < 1.1
    assert network.share(1, 1, 0.5, 1e6) == (unlimited, unlimited)


def test_streams() -> None:
    """The others go on until the last has ended its request; what is not over counts by its time."""
    begun: list[list[Future[str]]] = [[], []]

    def begin(k: int) -> Future[str]:
        begun[k].append(Future())
        if k == 1 and len(begun[1]) % 3 == 0:
            begun[0][-1].set_result("slow")
        elif k == 1:
            begun[1][-1].set_result("fast")
        return begun[k][-1]

    streams = Streams([partial(begin, 0), partial(begin, 1)])
    assert streams.run() == "slow"
    assert [len(futures) for futures in begun] == [1, 3]
    assert 3 <= streams.served() <= 4, "one goes on"
    begun[1][-1].set_result("fast")
    assert streams.run() == "slow"
    assert [len(futures) for futures in begun] == [2, 6], "what went on was ended first"
    assert 7 <= streams.served() <= 8


def test_streams_fail() -> None:
    failed: Future[str] = Future()
    failed.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        Streams([lambda: failed]).run()


def test_requests_that_waited_for_a_plan() -> None:
    assert lengths.slow_ones([]) == lengths.slow_ones([1.0]) == 0
    assert lengths.slow_ones([9.0, *[1.0] * 20, 5.1, *[1.0] * 9, 4.9]) == 2
    assert lengths.slow_ones([1.0] * 20 + [10.0] * 20) == 0, "from then on all take as long"
    assert lengths.slow_ones([9.0] * 3) == 0


def test_ratios_and_tokens_of_a_stream() -> None:
    ours, other = lengths.Found(OURS, "1", "", 0.0, [9.0, 1.0, 3.0, 2.0]), lengths.Found("onnxruntime", "1", "", 0.0, [4.0, 4.0, 4.0, 2.0])
    result = lengths.LengthsResult("x", [0], [1, 2, 3, 4], [ours, other])
    assert result.ratios() == {"onnxruntime": (pytest.approx(15 / 14), pytest.approx(2.5 / 3))}
    assert "by onnxruntime 1.071 in all, 0.833 by the second half's median" in result.verdict
    ours.tokens, other.tokens = [1, 2, 3, 4], [1, 2, 5, 4]
    assert result.ratios() == {"onnxruntime": (pytest.approx(6 / 10), pytest.approx(2 / 4))}
    assert result.same_tokens == 3
    assert "the same token at 3 of 4" in result.verdict


def test_verdicts_of_nothing() -> None:
    assert "nothing was measured" in lengths.LengthsResult("x", [0], []).verdict
    nothing = Comparison("x", None)
    assert "nothing was measured" in order.verdict(nothing)
    assert "nothing was measured" in tiles.verdict(nothing)
    assert "nothing was measured" in synthetic.verdict(nothing)
    assert "nothing was measured" in scaling.of_comparison(nothing).verdict
    assert "nothing was measured" in hetero.HeteroResult("x", [0], [1], "fifo").verdict


def test_the_best_number_of_tiles() -> None:
    entries = [entry("automatic", OURS, 2, 1.0, 1.0), entry("8", OURS, 2, 1.25, 1.2), entry("32", OURS, 2, 1.05, 1.0)]
    text = tiles.verdict(Comparison("x", None, entries))
    assert "0.952 of the time of the best fixed number, 32 tiles a layer" in text


class Played:
    """Seats whose variants take 10 ms times the last number in their label."""

    loaded: ClassVar[list[list[str]]] = []

    def __init__(self, case: Case, variants: Sequence[Variant], say: Any) -> None:
        self.variants, self.macs, self.settings = variants, 7, {}
        Played.loaded.append([variant.label for variant in variants])

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rounds(self, schedule: Schedule, what: str = "", beside: object = None, probe: object = None) -> Rounds:
        turns = {v.label: Turn([0.01 * int(v.label)] * 2) for v in self.variants if v.label != "5"}
        return Rounds([turns] * schedule.rounds, 1, 0, {"5": "no"} if any(v.label == "5" for v in self.variants) else {})


def test_many_variants_are_loaded_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "Seats", Played)
    monkeypatch.setattr(Played, "loaded", [])
    variants = [Variant(str(n), OURS, [0]) for n in (2, 1, 3, 4, 5, 6)]
    found = compare.compare(Case("tcn"), variants, Schedule(rounds=3), print, at_once=3)
    assert Played.loaded == [["2", "1", "3"], ["2", "4", "5"], ["2", "6"]]
    assert [e.label for e in found.entries] == ["2", "1", "3", "4", "6"]
    assert [e.ratio for e in found.entries] == pytest.approx([1, 0.5, 1.5, 2, 3])
    assert found["2"].median_ms == pytest.approx(20)
    assert len(found["2"].rounds_ms) == 9
    assert (found.rejected, found.failed, found.macs) == (3, {"5": "no"}, 7)


def test_engines() -> None:
    assert wanted_engines(["onnxruntime", OURS])[0] == [OURS, "onnxruntime"]
    with pytest.raises(ValueError, match="abacus"):
        wanted_engines(["abacus"])
    there, absent = wanted_engines(None)
    assert there[0] == OURS
    assert sorted(there + absent) == ["aspen-mp", "onnxruntime", "openvino"]
