"""How fast cores are found to be, from what their workers count."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from aspen_mp.control.pool.core_speeds import ENOUGH_NS, LEAST, LONE, LOOKS, MOST_LOOKS, CoreSpeeds, alike
from aspen_mp.planner.cost import rates
from aspen_mp.planner.cost.machine import Machine
from aspen_mp.workers.topology import PhysicalCore, Topology

SECOND = 10**9


class Workers:
    """Workers on CPUs of given speeds, busy all the time; looked at once a second."""

    def __init__(self, gives: dict[int, float], nominal: dict[int, float] | None = None) -> None:
        self.gives, self.nominal = gives, nominal or {}
        self.spent = dict.fromkeys(gives, 0)
        self.expected = dict.fromkeys(gives, 0)
        self.speeds = CoreSpeeds()

    def look(self, n: int = 1, busy: float = 1.0) -> list[float]:
        for _ in range(n):
            for cpu, speed in self.gives.items():
                self.spent[cpu] += int(busy * SECOND)
                self.expected[cpu] += int(busy * speed * SECOND)
            counts = [(row, 100 + cpu, cpu, self.spent[cpu], self.expected[cpu]) for row, cpu in enumerate(self.gives)]
            self.speeds.look(counts, self.nominal)
        return self.of(self.gives)

    def of(self, cpus: Iterable[int]) -> list[float]:
        cores = tuple(PhysicalCore(cpu, 0, 0, (cpu,), cpu, 0, 0, "uniform", self.nominal.get(cpu, 1.0)) for cpu in self.gives)
        return Topology(cores, None, len(cores)).speeds(cpus, self.speeds.gives)


def test_alike_cores() -> None:
    """Plans' expectations are wrong by some factor, and cores vary a little."""
    assert Workers({0: 1.3, 1: 1.4, 2: 1.2}).look(20) == [1, 1, 1]


@pytest.mark.parametrize(("gives", "found"), [(0.5, 0.5), (0.47, 0.5), (0.25, 0.25), (0.7, 0.71), (0.06, 0.06)])
def test_a_slow_core(gives: float, found: float) -> None:
    workers = Workers({4: 1.1 * gives, 7: 1.1})
    assert workers.look(LOOKS + 1) == [1, 1]
    assert workers.look(1) == [1, found]
    assert workers.of([4]) == [1]
    assert workers.of([7, 4, 5]) == [1, 1, found]
    assert workers.of([]) == []


def test_what_passes_is_not_taken_up() -> None:
    workers = Workers({0: 1.0, 1: 1.0})
    workers.look(LOOKS)
    for _ in range(5):
        workers.gives[1] = 0.4
        assert workers.look(1) == [1, 1]
        workers.gives[1] = 1.0
        assert workers.look(LOOKS) == [1, 1]


@pytest.mark.parametrize("seconds", [2, 3, 5, 60])
def test_one_pause_is_not_a_slow_core(seconds: int) -> None:
    """A worker whose CPU is taken away in the middle of a kernel: that one took long, whether there is much to do or little."""
    for busy in (1.0, 0.01):
        workers = Workers({0: 1.0, 1: 1.0})
        workers.look(3 * LOOKS, busy)
        workers.spent[1] += seconds * SECOND
        for _ in range(10 * LOOKS):
            assert workers.look(1, busy) == [1, 1]


@pytest.mark.parametrize("busy", [0.012, 0.001, 0.0002])
def test_little_work_says_it_later(busy: float) -> None:
    """A core that was slow under load and is not any more: the less there is to do, the longer it takes to tell."""
    workers = Workers({0: 1.0, 1: 0.25})
    assert workers.look(20) == [1, 0.25]
    workers.gives[1] = 1.0
    assert workers.look(int(3 * ENOUGH_NS / SECOND / busy) + 3 * LOOKS, busy) == [1, 1]
    assert workers.speeds.gives == {1: 1.0}
    assert all(len(window.looks) <= MOST_LOOKS + 3 for window in workers.speeds._windows.values())
    workers.gives[1] = 0.25
    assert workers.look(20) == [1, 0.25]


def test_who_is_idle_is_not_compared() -> None:
    """What it gave some time ago, when all were faster, says nothing."""
    workers = Workers({0: 1.0, 1: 1.0})
    workers.look(20)
    workers.gives[0] = 0.5
    workers.nominal = {}
    for _ in range(20):
        workers.spent[1] -= SECOND
        workers.expected[1] -= SECOND
        assert workers.look(1) == [1, 1]


def test_a_lone_fast_one_does_not_make_many_slow() -> None:
    assert Workers({**dict.fromkeys(range(64), 1.0), 64: 1.3}).look(20) == [1] * 65
    assert Workers({**dict.fromkeys(range(LONE), 1.0), LONE: 1.3}).look(20) == [1] * (LONE + 1)
    # Two fast ones among as many as laptops have are worth it, and so is one of few.
    assert Workers({0: 2.0, 1: 2.0, **dict.fromkeys(range(2, 10), 1.0)}).look(20) == [1, 1, *[0.5] * 8]
    assert Workers({0: 2.0, 1: 1.0, 2: 1.0, 3: 1.0}).look(20) == [1, 0.5, 0.5, 0.5]


def test_no_core_has_speed_0() -> None:
    """Of a little core that gives next to nothing: a machine with such a core can be planned for."""
    workers = Workers({0: 1.0, 1: 0.002}, {0: 1.0, 1: 0.25})
    found = workers.look(20, busy=10.0)
    assert workers.speeds.gives == {1: LEAST}
    assert found == [1, 0.01]
    assert alike(found, found)
    assert len(Machine.of_speeds(found, rates.BUILT_IN)) == 2


def test_it_becomes_fast_again_and_keeps_its_speed_without_work() -> None:
    workers = Workers({0: 1.0, 1: 0.25})
    assert workers.look(10) == [1, 0.25]
    assert workers.look(10, busy=0.0) == [1, 0.25]
    workers.gives[1] = 0.28  # within what estimates are good for
    assert workers.look(20) == [1, 0.25]
    workers.gives[1] = 1.0
    assert workers.look(3 * LOOKS) == [1, 1]


def test_what_the_machine_says_holds_while_it_is_about_right() -> None:
    nominal = {0: 1.0, 1: 1.0, 8: 0.6, 9: 0.6}
    assert Workers({0: 2.0, 1: 2.0, 8: 1.1, 9: 1.3}, nominal).look(20) == [1, 1, 0.6, 0.6]
    assert Workers({0: 2.0, 1: 2.0, 8: 0.6, 9: 1.2}, nominal).look(20) == [1, 1, 0.6, 0.3]
    assert Workers({0: 2.0, 1: 1.0, 8: 1.2, 9: 1.2}, nominal).look(20) == [1, 0.6, 0.6, 0.5]


def test_too_little_work_says_nothing() -> None:
    workers = Workers({0: 1.0, 1: 0.25})
    assert workers.look(20, busy=ENOUGH_NS / SECOND / 20) == [1, 1]
    alone = Workers({0: 0.25})
    assert alone.look(20) == [1]


def test_another_worker_in_a_row_begins_anew() -> None:
    speeds = CoreSpeeds()
    for second in range(1, 20):
        pid = 100 + second // LOOKS
        counts = [(0, 99, 0, second * SECOND, second * SECOND), (1, pid, 1, second % LOOKS * 4 * SECOND, second % LOOKS * SECOND)]
        speeds.look(counts, {})
    assert speeds.gives == {1: 0.25}
    speeds.look([(0, 99, None, 0, 0)], {})


def test_plans_for_alike_speeds() -> None:
    assert alike([1, 0.5], [1, 0.45])
    assert not alike([1, 0.5], [1, 0.35])
    assert not alike([1], [1, 1])
    assert alike([], [])
