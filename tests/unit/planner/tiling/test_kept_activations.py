"""Which activations a stream keeps: what is left fits wherever it can, and maps are those of every single element."""

from __future__ import annotations

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from small_graphs import GRAPHS

from aspen_mp.planner.layout.storage import ARENA, aligned, assign_storage
from aspen_mp.planner.ops.table import input_region
from aspen_mp.planner.tiling.keeping import forgotten
from aspen_mp.planner.tiling.maps import Map
from aspen_mp.planner.tiling.reach import _Reader


def drawn(rng: np.random.Generator) -> Map:
    first, last = sorted(int(x) for x in rng.integers(0, 12, 2))
    begin = int(rng.integers(-12, 12))
    return Map(0, 0, first, last, int(rng.integers(0, 5)), begin, begin + int(rng.integers(0, 12)), int(rng.integers(1, 5)))


@pytest.mark.parametrize("seed", range(300))
def test_maps_of_boxes_are_those_of_elements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, extent = drawn(rng), 30
    reads = {o: set(range(max((m.a * o + m.begin) // m.c, 0), min((m.a * o + m.end) // m.c, extent))) for o in range(m.first, m.last)}
    low = int(rng.integers(0, extent))
    high = int(rng.integers(low + 1, extent + 1))
    reached = range(*m.reached(low, high))
    assert {o for o, inputs in reads.items() if inputs & set(range(low, high))} <= set(reached) <= set(reads)
    low, high = sorted(int(x) for x in rng.integers(0, 14, 2))
    needed = m.needed(low, high)
    wanted = {x for o in range(max(low, m.first), min(high, m.last)) for x in reads[o]}
    assert wanted <= (set() if needed is None else set(range(*needed)))
    assert (needed is None) == (max(low, m.first) >= min(high, m.last))


@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 1.0])
def test_what_is_kept_fits(make, part: float) -> None:
    storage = assign_storage(make(GraphBuilder()))
    reader = _Reader(storage, input_region)
    reads = [reader.reads(node) for node in storage.steps]
    buffers = {storage.refs[tensor].buffer for node in storage.steps for tensor in node.outputs}
    activations = {buffer for buffer in buffers if buffer.space == ARENA}
    whole = sum(aligned(buffer.nbytes) for buffer in activations)
    left = forgotten(storage, reads, int(part * whole))
    assert left <= activations
    kept = sum(aligned(buffer.nbytes) for buffer in activations - left)
    assert kept <= part * whole or all(not buffer.nbytes for buffer in activations - left)
    assert bool(left) == (part < 1.0 and whole > 0)


def test_what_is_dear_to_compute_anew_is_kept() -> None:
    """Of two activations of one size, one is read by a mean over all positions. Without it, all of it would run for each frame."""
    b = GraphBuilder()
    x = b.input(1, 32, 64, 64)
    far, near = b.conv(x, 32), b.conv(x, 32)
    storage = assign_storage(b.graph(b.reduce(far, [2, 3]), b.conv(near, 32)))
    reader = _Reader(storage, input_region)
    reads = [reader.reads(node) for node in storage.steps]
    left = forgotten(storage, reads, aligned(storage.refs[far].buffer.nbytes) + 4096)
    assert storage.refs[near].buffer in left
    assert storage.refs[far].buffer not in left
