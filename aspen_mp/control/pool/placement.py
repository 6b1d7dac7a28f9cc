"""Where workers belong when the machine has changed under a runtime: who stays, who moves, and where new ones go.

Pure functions over the topology; the pool does what they say. Nobody moves without need. A worker keeps its CPU unless that was taken away,
or another worker is there as well while a better CPU is free. It also moves when the CPU that its user chose for it can be used again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from aspen_mp.workers.topology import Topology


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker is or is going to be. `home`: the CPU that its user chose, which it returns to whenever that may be used."""

    cpu: int
    home: int | None = None


def arrange(
    machine: Topology,
    preferred: Sequence[int],
    places: Sequence[Place | None],
    others: Collection[int],
    ahead: Mapping[int, int] | None = None,
) -> list[Place]:
    """A place for each of `places` (None: a new worker), in their order.

    `preferred`: CPUs in the order in which a runtime that starts now would take them; the machine's other usable CPUs come after them.
    `others`: CPUs of other runtimes' workers, each named once for each worker. They count where a worker of ours would come.
    `ahead`: how many of them were there before ours; these alone count where a worker of ours is. So only later runtimes move from a core
    that they share, and only to a core with fewer workers than were there before them. None: all were.
    """
    order = [*preferred, *(cpu for cpu in machine.placement() if cpu not in set(preferred))]
    position = {cpu: k for k, cpu in enumerate(order)}
    quality = {cpu: (cpu not in set(preferred), machine.by_cpu[cpu].rank) for cpu in order}
    load = Counter(cpu for cpu in others if cpu in position)
    before = load.copy() if ahead is None else ahead
    after = {cpu: n - before.get(cpu, 0) for cpu, n in load.items()}  # others that came after ours
    found: list[int | None] = [None] * len(places)

    def settle(k: int, cpu: int) -> None:
        found[k] = cpu
        load[cpu] += 1

    for k, place in enumerate(places):
        if place is not None and place.home in position:
            settle(k, place.home)
    for k, place in enumerate(places):
        if place is not None and found[k] is None and place.cpu in position and load[place.cpu] == after.get(place.cpu, 0):
            settle(k, place.cpu)
    for k, place in enumerate(places):
        if found[k] is None:
            now = None if place is None else place.cpu
            counted = {cpu: load[cpu] - (after.get(cpu, 0) if cpu == now else 0) for cpu in order}
            settle(k, min(order, key=lambda cpu: (counted[cpu], quality[cpu], cpu != now, position[cpu])))
    for k, place in enumerate(places):  # a faster core has become free
        own = found[k]
        assert own is not None
        better = [cpu for cpu in order if not load[cpu] and quality[cpu] < quality[own]]
        if better and (place is None or place.home != own):
            load[own] -= 1
            settle(k, better[0])
    return [Place(cpu, None if place is None else place.home) for cpu, place in zip(found, places, strict=True) if cpu is not None]


def emptier(machine: Topology, level: int, load: Mapping[int, int]) -> int | None:
    """The best CPU with fewer workers than `level`, those with the fewest first; None if there is none.

    `level`: how many workers were there before one that has just come. `load`: how many workers each CPU has.
    """
    best = min(machine.placement(), key=lambda cpu: load.get(cpu, 0))
    return best if load.get(best, 0) < level else None


def alike(machine: Topology, cpu: int) -> set[int]:
    """The usable CPUs of the same NUMA node and core class as `cpu`."""
    own = machine.by_cpu[cpu]
    return {core.cpu for core in machine.cores if (core.node, core.rank) == (own.node, own.rank)}


def surplus(machine: Topology, places: Sequence[Place], n: int) -> list[int]:
    """Indices of the `n` places to give up first: those on CPUs that may not be used, those that share one, then the newest."""
    seen: Counter[int] = Counter()
    rank = []
    for k, place in enumerate(places):
        usable = place.cpu in machine.by_cpu
        rank.append((usable, not seen[place.cpu] if usable else False, -k))
        seen[place.cpu] += 1
    return sorted(sorted(range(len(places)), key=rank.__getitem__)[:n])


def automatic(machine: Topology, preferred: Sequence[int], ours: Collection[int], others: Collection[int]) -> int:
    """How many workers a runtime has whose user did not say: one for each core that the quota pays for. Cores that others have workers on
    do not count unless we have one there, too, or there are no other cores."""
    limit = sum(cpu in ours or cpu not in others for cpu in preferred) or len(preferred)
    return min(limit, machine.paid or limit)
