"""Where workers go when the machine changes under a runtime."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aspen_mp.control.pool.placement import Place, arrange, automatic, surplus
from aspen_mp.workers.topology import Core, Topology


def machine(cpus: Sequence[int], *, slow: Sequence[int] = (), quota: float | None = None) -> Topology:
    cores = tuple(
        Core(cpu=k, package=0, node=0, siblings=(k,), l2=k, l3=0, rank=int(k in slow), core_class="c", speed=0.5 if k in slow else 1.0)
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
