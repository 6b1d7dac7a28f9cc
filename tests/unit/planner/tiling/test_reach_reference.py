"""REACH beside another evaluation of its program, and both beside what each element depends on: parts are never too small."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as hs
from reach_reference import BOXES, RANK, WORDS, Mask, dependent, evaluate, read_by
from small_graphs import GRAPHS, random_grids
from test_plan_random import graphs

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.layout.grids import TILE_AXES
from aspen_mp.planner.layout.storage import ARENA, assign_storage
from aspen_mp.planner.ops.streams import reach as reach_op
from aspen_mp.planner.ops.table import input_region, params, value_region
from aspen_mp.planner.tiling import reach, thresholds
from aspen_mp.shm.tables import NUMBERS
from aspen_mp.workers import _kernels

KEEPING = {"bits": input_region, "values": value_region}
MOST_PARAMS = 4096
"""Parameters of a call by hand (`_kernels.call`), at most."""
Changes = np.ndarray[tuple[int, int], np.dtype[np.int32]]


def by_kernel(
    program: Sequence[int], changes: Changes, marks: Sequence[Changes], tiles: int, isa: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    parts, counts = np.full((tiles, 2 * TILE_AXES), 7, np.uint32), np.full((1, reach_op.COUNTS + reach_op.READY * program[3]), 7.0)
    assert _kernels.call(reach_op.NAME, [parts, counts, changes, *marks], list(program), [0, 0], list(parts.shape), isa=isa) == 0
    return parts, counts[0, : reach_op.COUNTS]


def compare(program: Sequence[int], changes: Changes, marks: Sequence[Changes] = ()) -> np.ndarray:
    """Parts by the kernel, on every instruction set, which are those of the other evaluation."""
    want, want_counts = evaluate(program, changes, marks)
    for isa in _kernels.isas() if len(program) <= MOST_PARAMS else ():
        parts, counts = by_kernel(program, changes, marks, len(want), isa)
        np.testing.assert_array_equal(parts, want)
        np.testing.assert_allclose(counts, want_counts, rtol=1e-12)
    return want


def boxes_of_inputs(rng: np.random.Generator, given_: Sequence[Tensor]) -> tuple[Changes, dict[Tensor, Mask]]:
    """Random boxes, as REACH reads them, and as masks."""
    changes, masks = np.zeros((len(given_) + 1, WORDS), np.int32), {}
    for row, t in zip(changes, given_, strict=False):
        masks[t] = np.zeros(t.shape, bool)
        row[0] = rng.integers(0, rng.choice([2, 5, BOXES + 1])) if t.size else 0
        for k in range(row[0]):
            lo = [int(rng.integers(0, d)) for d in t.shape]
            hi = [int(rng.integers(a, min(d, a + 3) if rng.random() < 0.8 else d)) + 1 for a, d in zip(lo, t.shape, strict=True)]
            row[1 + 2 * k * RANK :][: len(lo)], row[1 + (2 * k + 1) * RANK :][: len(hi)] = lo, hi
            masks[t][tuple(map(slice, lo, hi))] = True
    return changes, masks


def boxes_that_run(node: Node, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the parts of a node's tiles that are not empty, along all axes."""
    shape = node.output.shape
    axes, rows = min(len(shape), TILE_AXES), parts[parts[:, 0] < parts[:, TILE_AXES]]
    rest = np.zeros((len(rows), len(shape) - axes), np.int64)
    lo, hi = rows[:, :axes], rows[:, TILE_AXES : TILE_AXES + axes]
    return np.concatenate([lo, rest], axis=1), np.concatenate([hi, rest + np.array(shape[axes:], np.int64)], axis=1)


def check(graph: Graph, seed: int, keeping: str, frames: int = 4, *, forgets: bool = False) -> None:
    rng = np.random.default_rng(seed)
    storage = assign_storage(graph)
    grids = random_grids(seed)(storage, 2)
    given_ = [t for _, t in storage.inputs]
    most = int(rng.integers(1, 2 * storage.request_bytes + 30000)) if forgets else 0
    program = params(reach.with_reach(storage, grids, keeping, most)[0].steps[0])
    kept = {t for t, ref in storage.refs.items() if ref.buffer.space != ARENA}
    for _ in range(frames):
        changes, masks = boxes_of_inputs(rng, given_)
        parts, base = compare(program, changes).astype(np.int64), 1
        needed = {t: mask.copy() for t, mask in dependent(storage, masks, KEEPING[keeping]).items() if t in kept}
        ran: dict[Tensor, Mask] = {}
        for node, grid in zip(storage.steps, grids, strict=True):
            lo, hi = boxes_that_run(node, parts[base : base + grid.n])
            mask = np.zeros(node.output.shape, bool)
            for a, b in zip(lo, hi, strict=True):
                mask[tuple(map(slice, a, b))] = True
            ran.update({t: mask if t.shape == mask.shape else np.full(t.shape, mask.any()) for t in node.outputs})
            for t, read in read_by(storage, node, mask).items() if node.op != "OPAQUE" else ():
                if t not in kept:
                    needed[t] = needed.get(t, False) | read
            base += grid.n
        for t, mask in ran.items():
            rest = needed.get(t, np.zeros(t.shape, bool)) & ~mask
            assert not rest.any(), f"seed {seed}: {t.name} misses {np.argwhere(rest)[:5].tolist()}"


@pytest.mark.parametrize("keeping", KEEPING)
@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
def test_parts_hold_all_that_depends_on_changes(make, keeping: str) -> None:
    for seed in range(3):
        check(make(GraphBuilder()), seed, keeping)


@pytest.mark.parametrize("keeping", KEEPING)
@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
def test_parts_hold_all_that_is_read_of_what_is_not_kept(make, keeping: str) -> None:
    for seed in range(2):
        check(make(GraphBuilder()), seed, keeping, 2, forgets=True)


@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", range(2))
def test_stretches_between_thresholds(make, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a program that means the same to both, whatever moved. Without thresholds there is one."""
    monkeypatch.setattr(thresholds, "WORTH", 0.0)
    rng, graph = np.random.default_rng(seed), make(GraphBuilder())
    storage = assign_storage(thresholds.with_thresholds(graph))
    grids = random_grids(seed)(storage, 2)
    found = [node for node in reach.with_reach(storage, grids, "near")[0].steps if node.op == reach_op.NAME]
    rows = sum(node.op == "REFRESH" and before.op != "REFRESH" for before, node in pairwise(storage.steps))
    assert len(found) == 1 + rows
    changes, _ = boxes_of_inputs(rng, [t for _, t in storage.inputs])
    changes[-1, 0] = 3
    for node in found:
        marks = [rng.integers(2, 4, x.shape).astype(np.int32) for x in node.inputs[1:]]
        compare(params(node), changes, marks)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(graphs(), hs.integers(0, 1000), hs.sampled_from(sorted(KEEPING)), hs.booleans())
def test_parts_of_random_graphs(graph: Graph, seed: int, keeping: str, forgets: bool) -> None:
    check(graph, seed, keeping, frames=2, forgets=forgets)


def random_program(rng: np.random.Generator) -> tuple[list[int], int, list[Changes]]:
    """A program that no graph has led to, its number of inputs, and marks. Slopes, offsets, divisors and ranges of maps are any."""
    shapes = [[int(d) for d in rng.integers(1, 9, rng.integers(0, 5))] for _ in range(rng.integers(1, 4))]
    n_inputs, n_steps = len(shapes), int(rng.integers(1, 6))
    marks = [rng.integers(-1, 2, rng.integers(1, 12, 3)).astype(np.int32) for _ in range(rng.integers(0, 3))]
    shapes += [list(one.shape) for one in marks]
    words = [n_inputs, len(marks), n_steps, 0, *(word for shape in shapes for word in (len(shape), *shape))]
    for _ in range(n_steps):
        dims = [int(d) for d in rng.integers(1, 12 if rng.random() < 0.8 else 60, rng.integers(0, 5))]
        block = [len(dims), *dims, int(np.float64(rng.integers(1, 9)).view(np.int64)), int(rng.integers(0, 3))]
        cuts = [sorted({0, d, *rng.integers(0, d + 1, rng.integers(0, 4)).tolist()}) for d in dims]
        distance = np.ones(len(dims), np.int64)
        order = rng.permutation(len(dims))
        for inner, outer in zip(order[1:], order, strict=False):
            distance[inner] = distance[outer] * (len(cuts[outer]) - 1)
        for cut, step in zip(cuts, distance.tolist(), strict=True):
            block += [len(cut) - 1, int(rng.choice([1, 1, 2, 3, 16])), step, *cut]
        reads = int(rng.integers(0, 4))
        block.append(reads)
        for _ in range(reads):
            source = int(rng.integers(0, len(shapes)))
            n_maps = int(rng.integers(0, 4)) if dims and shapes[source] else 0
            block += [source, n_maps]
            for _ in range(n_maps):
                out, into = int(rng.integers(0, len(dims))), int(rng.integers(0, len(shapes[source])))
                begin = int(rng.integers(-20, 20))
                first, last = rng.integers(0, dims[out] + 1, 2).tolist() if rng.random() < 0.3 else (0, dims[out])
                a, c = int(rng.integers(0, 5)), int(rng.integers(1, 5))
                block += [out, into, first, last, a, begin, begin + int(rng.integers(0, 30)), c]
        words += [len(block) + 1, *block]
        shapes.append(dims)
    return words, n_inputs, marks


def random_boxes(rng: np.random.Generator, n_inputs: int) -> Changes:
    """Boxes of any kind: also empty ones, some beyond the input, garbage, and more than there may be."""
    changes = rng.integers(-3, 12, (n_inputs + 1, WORDS)).astype(np.int32)
    wild = rng.random(changes.shape) < 0.01
    changes[wild] = rng.integers(-(1 << 31), 1 << 31, int(wild.sum()))
    changes[:, 0] = rng.choice([0, 1, 2, 5, BOXES, BOXES + 1, -7, (1 << 31) - 1, -(1 << 31)], n_inputs + 1)
    changes[-1, 0] = 1  # the frame
    assert not np.isin(changes[:, 0], [NUMBERS["REACH_ARRIVING"], NUMBERS["REACH_FIRST"]]).any()
    return changes


def test_random_programs_mean_the_same_to_both() -> None:
    """Also where boxes are garbage, as a hostile client may write them."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        program, n_inputs, marks = random_program(rng)
        for _ in range(3):
            compare(program, random_boxes(rng, n_inputs), marks)
