"""Profiles the layer groups of a planned network on each core set (HaX-CoNN, sections 3.1 and 3.2).

A group ends where few bytes are alive, because a transition moves these. Times come from simulating the whole plan on each core set, not
from groups one by one, because there is no barrier between groups. Bytes are those that the cost model sends to memory behind the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.coschedule.problem import CoreSet, ProfiledNetwork
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.planner.cost.rates import Rates
from aspen_mp.planner.simulation.simulate import Tiles, of_plan, simulate

if TYPE_CHECKING:
    from aspen_mp.planner.plan.plan import Plan

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

GROUPS: Final = 20
"""Groups of a network, at most: more make the search longer than schedules better."""
LEAST_PART: Final = 1e-3
"""A group takes this part of its network's time at least."""
WORTH_BYTES: Final = 0.5
"""How much of the even length of groups a cut may be moved for a boundary where fewer bytes are alive."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ops `first` to `last` of a plan, both included. `live`: bytes that later ops read of these and of those before. `bytes`: traffic to
    and from memory. `ns`: time on one core of speed 1."""

    first: int
    last: int
    name: str
    live: float
    bytes: float
    ns: float


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """A network in groups, `latency` [core sets]: ns for the whole of it."""

    groups: tuple[Group, ...]
    network: ProfiledNetwork
    latency: Floats


def layer_groups(plan: Plan, most: int = GROUPS) -> tuple[Group, ...]:
    """Cut a plan into `most` groups at most, of about the same time, at boundaries between ops with few live bytes."""
    ops = len(plan.ops) - 2
    costs = plan.tile_costs()
    of_tile = plan.tiles["op"].astype(np.int64)
    ns: Floats = np.bincount(of_tile, costs.ns, ops + 2)[:ops].astype(np.float64)
    moved = np.bincount(of_tile, costs.bytes, ops + 2)[:ops]
    live = live_bytes(plan)
    ends = _ends(ns, live, max(1, most))
    found = []
    for first, last in zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True):
        named = plan.info[first].name, plan.info[last].name
        name = named[0] if first == last else " … ".join(named)
        part = slice(first, last + 1)
        found.append(Group(first, last, name, float(live[last]), float(moved[part].sum()), float(ns[part].sum())))
    return tuple(found)


def live_bytes(plan: Plan) -> Floats:
    """[ops]: after each op, the bytes written so far that are read later. Zeros for a plan from a file."""
    ops = len(plan.ops) - 2
    flow = plan.tile_costs().flow()
    out = np.zeros(ops + 1)
    if not len(flow.sources):
        return out[:ops]
    of_tile = plan.tiles["op"].astype(np.int64)[: flow.tiles]
    reader = np.repeat(np.arange(len(flow.begin) - 1), (flow.begin[1:] - flow.begin[:-1]).astype(np.int64))
    source = flow.sources.astype(np.int64)
    last_of_row = _last_readers(flow.tiles, len(flow.begin) - 1, reader, source, of_tile)
    written = np.zeros(flow.tiles)
    direct = source < flow.tiles
    np.maximum.at(written, source[direct], flow.nbytes[direct].astype(np.float64))
    begin, end = of_tile, last_of_row[: flow.tiles]
    read = end > begin
    np.add.at(out, begin[read], written[read])
    np.add.at(out, end[read], -written[read])
    return np.cumsum(out)[:ops]


def _last_readers(tiles: int, rows: int, reader: Ints, source: Ints, of_tile: Ints) -> Ints:
    """[rows]: the last op that reads a tile, by itself or in a group, or a group."""
    last = np.full(rows, -1)
    by_tile = reader < tiles
    np.maximum.at(last, source[by_tile], of_tile[reader[by_tile]])
    in_group = ~by_tile  # a group's tiles are read by whoever reads the group
    np.maximum.at(last, source[in_group], last[reader[in_group]])
    return last


def _ends(ns: Floats, live: Floats, most: int) -> list[int]:
    """The last op of each group. Each cut lies at the fewest live bytes near where an even one would."""
    total = np.cumsum(ns)
    ends: list[int] = []
    whole = float(total[-1]) or 1.0
    for k in range(1, most):
        near = np.flatnonzero(np.abs(total / whole * most - k) <= WORTH_BYTES)
        near = near[(near < len(ns) - 1) & (near > (ends[-1] if ends else -1))]
        if len(near):
            away = np.abs(total[near] / whole * most - k)
            ends.append(int(near[np.lexsort((away, live[near]))[0]]))
    return [*ends, len(ns) - 1]


def profile(plan: Plan, name: str, machines: Sequence[Machine], sets: Sequence[CoreSet], rates: Rates) -> Profile:
    """Profile a plan on core sets. `machines`: each set as a machine of its own (`units.machine_of`). `rates`: for the bytes of
    transitions."""
    groups = layer_groups(plan)
    tiles = of_plan(plan)
    of_op = np.zeros(len(plan.ops), np.int64)
    for k, group in enumerate(groups):
        of_op[group.first : group.last + 1] = k
    of_op[-2:] = len(groups) - 1  # JOIN and END take no time
    of_tile = of_op[plan.tiles["op"]]
    ns, latency = np.empty((len(groups), len(sets))), np.empty(len(sets))
    for a, machine in enumerate(machines):
        ns[:, a], latency[a] = _times(tiles, machine, of_tile, len(groups))
    most = np.array([machine.bytes_per_ns for machine in machines])
    demand = np.minimum(np.array([[group.bytes] for group in groups]) / ns, most)
    live = np.array([0.0, *(group.live for group in groups[:-1])])[:, None]
    speed = np.array([min(sum(each.cores) * rates.cold, bandwidth) for each, bandwidth in zip(sets, most, strict=True)])
    network = ProfiledNetwork(name, tuple(group.name for group in groups), ns, demand, np.zeros_like(ns), live / speed)
    return Profile(groups, network, latency)


def _times(tiles: Tiles, machine: Machine, of_tile: Ints, groups: int) -> tuple[Floats, float]:
    """[groups] ns, and their sum, which is the simulated latency. A group takes as long as the machine needs for its tiles if no core
    idles. Idle time of cores goes to the groups that end later than that."""
    outcome = simulate(tiles, machine, timeline=True)
    line = outcome.timeline
    assert line is not None
    power = float(outcome.speeds.sum())
    busy = np.bincount(of_tile[line.tile], (line.end - line.start) * outcome.speeds[line.core], groups) / power
    ends = np.zeros(groups)
    np.maximum.at(ends, of_tile[line.tile], line.end)
    latency = float(ends.max())
    late = np.maximum(np.diff(np.maximum.accumulate(ends), prepend=0.0) - busy, 0.0)
    idle = max(latency - float(busy.sum()), 0.0)
    took = busy + late * (idle / late.sum() if late.any() else 0.0)
    took = np.maximum(took, LEAST_PART * latency)
    return took * (latency / took.sum()), latency


def table(found: Profile, sets: Sequence[CoreSet]) -> list[dict[str, Any]]:
    """A row for each group, as plain numbers: name, ops, live bytes, bytes, and by core set ms and GB/s asked for."""
    return [
        {
            "name": group.name,
            "ops": group.last - group.first + 1,
            "live_bytes": group.live,
            "bytes": group.bytes,
            "ms": {each.name: float(found.network.ns[k, a]) * 1e-6 for a, each in enumerate(sets)},
            "gbytes_per_s": {each.name: float(found.network.demand[k, a]) for a, each in enumerate(sets)},
        }
        for k, group in enumerate(found.groups)
    ]
