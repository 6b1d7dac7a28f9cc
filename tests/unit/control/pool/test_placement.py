"""Where workers go when the machine changes under a runtime."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from aspen_mp.control.pool.core_leases import Leases
from aspen_mp.control.pool.placement import Place, alike, arrange, automatic, emptier, surplus
from aspen_mp.control.pool.workers import WorkerPool
from aspen_mp.workers.topology import PhysicalCore, Topology


def machine(cpus: Sequence[int], *, slow: Sequence[int] = (), quota: float | None = None) -> Topology:
    cores = tuple(
        PhysicalCore(
            cpu=k, package=0, node=0, siblings=(k,), l2=k, l3=0, rank=int(k in slow), core_class="c", speed=0.5 if k in slow else 1.0
        )
        for k in cpus
    )
    return Topology(cores=cores, quota=quota, online=16)


def moved(cpus: Sequence[int], places: Sequence[Place | int | None], others: Sequence[int] = (), slow: Sequence[int] = ()) -> list[int]:
    there = machine(cpus, slow=slow)
    now = [Place(p) if isinstance(p, int) else p for p in places]
    return [place.cpu for place in arrange(there, there.placement(), now, others)]


@pytest.mark.parametrize(
    ("cpus", "places", "others", "result"),
    [
        ([0, 1, 2, 3], [3, 2], [], [3, 2]),  # nobody moves without need
        ([0, 1], [3, 1], [], [0, 1]),  # only who has to
        ([0, 1], [0, 1, 2, 3], [], [0, 1, 0, 1]),  # too few: shared evenly
        ([0, 1, 2], [0, 1, 0, 1], [], [0, 1, 2, 1]),  # one came back
        ([0, 1, 2, 3], [0, 1, 0, 1], [], [0, 1, 2, 3]),
        ([0, 1, 2, 3], [0, None, None], [1], [0, 2, 3]),  # new ones keep out of others' way
        ([0, 1], [0, None], [1], [0, 0]),  # or share, as well with us as with others
        ([0, 1, 2], [0, 1], [0], [2, 1]),  # who shares with another runtime takes what is free
        ([0, 1], [0, 1], [0, 1], [0, 1]),  # nothing is
        ([2], [0, 1], [], [2, 2]),
    ],
)
def test_arrange(cpus: list[int], places: list[int | None], others: list[int], result: list[int]) -> None:
    assert sorted(moved(cpus, places, others)) == sorted(result)
    kept = [k for k, place in enumerate(places) if place == result[k]]
    assert all(moved(cpus, places, others)[k] == result[k] for k in kept)


def test_a_chosen_core_is_left_only_for_as_long_as_it_is_gone() -> None:
    there, fewer = machine([0, 1, 2]), machine([0, 1])
    chosen = [Place(2, 2), Place(0, 0)]
    away = arrange(fewer, fewer.placement(), chosen, ())
    assert away == [Place(1, 2), Place(0, 0)]
    assert arrange(there, there.placement(), away, ()) == chosen
    assert arrange(there, there.placement(), [Place(0, 0), Place(0, 0)], ()) == [Place(0, 0)] * 2  # asked for


def test_a_faster_core_is_worth_a_move() -> None:
    assert moved([0, 1, 4, 5], [4, 5], slow=[4, 5]) == [0, 1]
    assert moved([0, 4, 5], [4, 5], slow=[4, 5]) == [0, 5]
    assert moved([0, 4], [4], others=[0], slow=[4]) == [4]


def test_who_goes_first() -> None:
    places = [Place(0), Place(5), Place(1), Place(1), Place(2)]
    there = machine([0, 1, 2])
    assert surplus(there, places, 1) == [1]
    assert surplus(there, places, 2) == [1, 3]
    assert surplus(there, places, 3) == [1, 3, 4]
    assert surplus(there, places, 0) == []


def test_automatic() -> None:
    assert automatic(machine(range(4)), [0, 1, 2, 3], [], []) == 4
    assert automatic(machine(range(4)), [0, 1, 2, 3], [], [2, 3]) == 2
    assert automatic(machine(range(4)), [0, 1, 2, 3], [3], [2, 3]) == 3
    assert automatic(machine(range(4)), [0, 1], [], [0, 1]) == 2
    assert automatic(machine(range(4), quota=2.5), [0, 1, 2, 3], [], []) == 2
    assert automatic(machine(range(4), quota=0.2), [0, 1, 2, 3], [], []) == 1


# ---- several runtimes


@pytest.mark.parametrize("seed", range(60))
def test_who_came_later_moves_to_an_emptier_core(seed: int) -> None:
    """Against the rule in one sentence: the least loaded core, if it has fewer workers than were on this one before."""
    rng = random.Random(seed)
    n = rng.randrange(1, 6)
    others = [rng.randrange(n) for _ in range(rng.randrange(9))]
    load, now = Counter(others), rng.randrange(n)
    ahead = rng.randrange(load[now] + 1)
    best = min(range(n), key=lambda cpu: (load[cpu], cpu))
    there = machine(range(n))
    found = arrange(there, there.placement(), [Place(now)], others, {now: ahead} if ahead else {})
    assert found == [Place(best if best != now and load[best] < ahead else now)], f"{n=} {others=} {now=} {ahead=}"


@pytest.mark.parametrize("seed", range(30))
def test_the_emptiest_core(seed: int) -> None:
    rng = random.Random(seed)
    cpus = rng.sample(range(8), rng.randrange(1, 6))
    there = machine(cpus, slow=cpus[:2])
    load = Counter(rng.choice(range(8)) for _ in range(rng.randrange(12)))
    level = rng.randrange(5)
    fewest = [cpu for cpu in there.placement() if load[cpu] == min(load[c] for c in cpus)]
    assert emptier(there, level, load) == (fewest[0] if load[fewest[0]] < level else None)
    for cpu in cpus:
        assert alike(there, cpu) == {c for c in cpus if (c in cpus[:2]) == (cpu in cpus[:2])}


class Guest:
    """A runtime without processes: where its workers are, by the pool's own decisions and real leases."""

    def __init__(self, there: Topology, where: Path, workers: int) -> None:
        self.machine, self.workers = there, workers
        self._leases = Leases(str(where))
        self.places: list[Place] = []

    def cpus(self) -> list[int]:
        return [place.cpu for place in self.places]

    def chosen(self) -> list[int]:
        return self.machine.select(self.workers, taken=self._leases.others())

    def start(self, chosen: Sequence[int]) -> None:
        self.places = [Place(cpu) for cpu in chosen]
        for k, place in enumerate(self.places):
            self.places[k] = WorkerPool._claim(self, place, self.machine)  # type: ignore[arg-type]

    def decided(self) -> list[Place]:
        self._leases.retry()
        return arrange(self.machine, self.machine.placement(), self.places, self._leases.others(), self._leases.ahead)

    def move(self, wanted: Sequence[Place]) -> int:
        moved = [k for k, place in enumerate(wanted) if place != self.places[k]]
        for k in moved:
            before, self.places[k] = self.places[k], wanted[k]
            self.places[k] = WorkerPool._claim(self, wanted[k], self.machine)  # type: ignore[arg-type]
            self._leases.drop(before.cpu)
        return len(moved)

    def close(self) -> None:
        self._leases.close()


@pytest.mark.parametrize("seed", range(16))
def test_runtimes_that_come_and_go_spread_over_the_cores(tmp_path: Path, seed: int) -> None:
    """Whoever comes, also at the same instant, and whoever goes: soon all cores have as many workers, within one, and nobody moves."""
    rng = random.Random(seed)
    there = machine(range(rng.randrange(1, 5)))
    guests: list[Guest] = []
    with ExitStack() as stack:
        for _ in range(6):
            for _ in range(rng.randrange(len(guests) + 1)):
                guests.pop(rng.randrange(len(guests))).close()
            new = [Guest(there, tmp_path, rng.choice((1, 1, 1, 2, len(there.cores)))) for _ in range(rng.randrange(1, 5))]
            for guest in new:
                stack.callback(guest.close)
            at_once = [guest.chosen() for guest in new]  # all look before one claims
            for guest, chosen in zip(new, at_once, strict=True):
                guest.start(chosen)
            guests += new
            for _ in range(20):
                rng.shuffle(guests)
                together = rng.random() < 0.5
                if together:
                    wanted = [guest.decided() for guest in guests]
                    moves = sum(guest.move(places) for guest, places in zip(guests, wanted, strict=True))
                else:
                    moves = sum(guest.move(guest.decided()) for guest in guests)
            assert moves == 0, f"seed {seed}: workers still move"
            load = Counter(cpu for guest in guests for cpu in guest.cpus())
            uses = [load[core.cpu] for core in there.cores]
            assert max(uses) - min(uses) <= 1, f"seed {seed}: {uses}"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_runtimes_that_start_at_the_same_instant_beside_one_of_all_cores(tmp_path: Path, workers: int) -> None:
    there = machine(range(3))
    with ExitStack() as stack:
        idle, *guests = (stack.enter_context(closing(Guest(there, tmp_path, n))) for n in (3, *[workers] * 6))
        idle.start(idle.chosen())
        at_once = [guest.chosen() for guest in guests]
        for guest, chosen in zip(guests, at_once, strict=True):
            guest.start(chosen)
        assert set(Counter(cpu for guest in guests for cpu in guest.cpus()).values()) == {2 * workers}
