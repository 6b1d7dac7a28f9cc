"""Shell of simulate.h; `aspen_mp.planner.simulation.simulate` is its face."""

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]

def run(
    child_begin: Array,
    children: Array,
    parent_counts: Array,
    initial: Array,
    rank: Array,
    depth: Array,
    ns: Array,
    nbytes: Array,
    far: float,
    flow_tiles: int,
    flow_begin: Array,
    flow_source: Array,
    flow_bytes: Array,
    made: Array,
    made_first: Array,
    made_again: Array,
    speed: Array,
    victims: Array,
    bytes_per_ns: float,
    engine: tuple[float, ...],
    rules: tuple[int, ...],
    timeline: bool,
) -> tuple[Array, float, Array, Array, Array, Array, int, tuple[Array, Array, Array, Array, Array] | None]:
    """(latency [requests], makespan, busy, schedule, tiles, steals [cores], events, timeline: tile, request, core, start, end). Unchecked:
    arrays must be contiguous, of the types that simulate.h names, and consistent. MemoryError; ValueError for a graph that gets stuck."""
