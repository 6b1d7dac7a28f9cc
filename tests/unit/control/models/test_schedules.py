"""The phases of a set of networks that run together (control/models/schedules.py), with clock, child and measurements by hand."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aspen_mp.control.models.schedules import MOST_TIMES, Live, Schedules, Table, View, rounds
from aspen_mp.control.planning.schedule_child import Candidate, Core
from aspen_mp.control.wire.event_log import EventLog

HINTS = [(0, 1, False)]
NONE = [(0, 0, False)]
SECOND = 10
"""Looks in a second."""


class Child:
    """In place of `ScheduleChild`."""

    def __init__(self, found: Callable[[Candidate], object], ended: Callable[[str], object], what: tuple[Any, ...]) -> None:
        self.found, self.ended, self.what, self.closed = found, ended, what, False

    def close(self) -> None:
        self.closed = True


class House:
    """A runtime of which nothing runs: models with one plan each, whose requests take `with_s` by hints and `without_s` otherwise."""

    def __init__(self) -> None:
        self.time = 0.0
        self.with_s = self.without_s = 0.01
        self.plans: dict[int, int] = {1: 11, 2: 12, 3: 13}
        self.ended: dict[int, float] = dict.fromkeys(self.plans, 0.0)
        self.spent: dict[int, float] = dict.fromkeys(self.plans, 0.0)
        self.idle: set[int] = set()
        self.rows = {0: Core(1.0, 0, 0, 0), 2: Core(1.0, 0, 0, 0)}
        self.published: list[tuple[Table, list[int]]] = []
        self.children: list[Child] = []
        self.refuse = False
        self.log = EventLog("test", "off")
        self._due: list[tuple[float, Callable[[], object]]] = []
        view = View(self._live, self._counts, lambda: self.rows, self._publish, lambda model: f"m{model}")
        self.schedules = Schedules(view, self.log, lambda: self.time, self._later, self._child)

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        self._due.append((self.time + seconds, action))

    def _live(self, model: int) -> list[Live]:
        return [Live(self.plans[model], -1, 0, int(self.ended[model]))]

    def _counts(self) -> dict[int, dict[str, float]]:
        return {m: {"requests": int(self.ended[m]), "queue_s": 0.0, "run_s": self.spent[m]} for m in self.plans}

    def _publish(self, table: Table, domains: Sequence[int]) -> int:
        self.published.append((table, list(domains)))
        return len(self.published)

    def _child(self, *what: Any) -> Any:
        if self.refuse:
            raise OSError(errno.EAGAIN, "no process")
        self.children.append(Child(what[-2], what[-1], what))
        return self.children[-1]

    @property
    def on(self) -> bool:
        return bool(self.published) and bool(self.published[-1][0])

    def go(self, looks: int) -> None:
        """The clock goes on. Models that are not idle end requests one after the other."""
        for _ in range(looks):
            self.time += 1 / SECOND
            took = self.with_s if self.on else self.without_s
            for model in set(self.plans) - self.idle:
                before = int(self.ended[model])
                self.ended[model] += 1 / SECOND / took
                self.spent[model] += (int(self.ended[model]) - before) * took
            due, self._due = self._due, []
            for when, action in due:
                if when <= self.time + 1e-9:
                    action()
                else:
                    self._due.append((when, action))

    @property
    def phase(self) -> str:
        said = self.schedules.describe()
        assert said is not None
        return str(said["phase"])

    def events(self) -> list[str]:
        return [event["event"] for event in self.log.latest()]


def candidate(value: float = 1.0, hints: list[tuple[int, int, bool]] = HINTS, networks: int = 2, cores: int = 2) -> Candidate:
    return Candidate(value, 1.0, value == 1.0, "search", 2.0, 3e6, 0.01, [hints] * networks, list(range(cores)))


def two(house: House) -> int:
    """Two models that run together, until a child searches."""
    number = house.schedules.begin(1, [1, 2], "latency")
    house.go(SECOND)
    return number


def test_a_schedule_that_does_good_is_kept() -> None:
    house = House()
    house.with_s = 0.008
    two(house)
    assert house.phase == "naive"
    (child,) = house.children
    assert [network.times for network in child.what[0]] == [1, 1]
    child.found(candidate(1.5))
    assert house.phase == "trial"
    assert house.published == [({11: HINTS, 12: HINTS}, [0, -1, 1])]
    child.found(candidate())
    child.ended("")
    house.go(20 * SECOND)
    assert house.phase == "solved"
    said = house.schedules.describe()
    assert said is not None
    assert said["ratio"] == pytest.approx(0.8, abs=0.05)
    assert said["proven"]
    assert said["predicted_ms"] == 3.0
    assert said["measured_ms"] == pytest.approx(8, rel=0.1)
    assert said["without_ms"] == pytest.approx(10, rel=0.1)
    assert said["version"] == len(house.published)
    assert not house.events()


def test_a_schedule_that_does_harm_is_reverted_and_not_tried_again() -> None:
    house = House()
    house.with_s = 0.02
    number = two(house)
    child = house.children[0]
    child.found(candidate(1.5))
    house.go(10 * SECOND)
    assert house.phase == "reverted"
    assert not house.on
    assert house.events() == ["schedule-reverted"]
    assert child.closed
    child.found(candidate())  # it comes too late
    assert not house.on
    versions = len(house.published)
    house.schedules.end(1, number)
    two(house)
    house.go(10 * SECOND)
    assert house.phase == "naive"
    assert "harm" in house.schedules.describe()["why"]  # type: ignore[index]
    assert len(house.children) == 1
    assert len(house.published) == versions


def test_hints_go_with_the_workload() -> None:
    house = House()
    number = two(house)
    house.children[0].found(candidate())
    house.schedules.end(2, number)  # somebody else's
    assert house.on
    house.schedules.end(1, number)
    assert not house.on
    assert house.children[0].closed
    assert house.schedules.describe() is None
    house.go(SECOND)
    assert len(house.children) == 1


@pytest.mark.parametrize("what", ["another", "client", "plan", "cores"])
def test_another_set_is_scheduled_anew(what: str) -> None:
    house = House()
    two(house)
    first = house.children[0]
    first.found(candidate())
    if what == "another":
        house.schedules.begin(2, [3], "throughput")
    elif what == "client":
        house.schedules.begin(2, [3], "latency")
        house.go(SECOND)
        house.children[-1].found(candidate(networks=3))
        house.schedules.client_gone(2)
    elif what == "plan":
        house.plans[2] = 22
    else:
        house.rows = {0: Core(1.0, 0, 0, 0)}
    house.go(1)
    assert not house.on
    assert first.closed
    house.go(2 * SECOND)
    last = house.children[-1]
    assert last is not first
    assert [network.name for network in last.what[0]] == ["m1 1", "m2 2"] + ["m3 3"] * (what == "another")
    last.found(candidate(networks=7))  # of something else
    assert not house.on
    last.found(candidate(networks=len(last.what[0]), cores=len(house.rows)))
    assert house.on


def test_one_network_is_left_alone() -> None:
    house = House()
    house.schedules.begin(1, [1], "latency")
    house.go(SECOND)
    assert house.phase == "alone"
    assert not house.children


def test_a_network_that_has_no_requests_is_waited_for() -> None:
    house = House()
    house.idle = {2}
    two(house)
    assert house.phase == "waiting"
    house.idle = set()
    house.go(SECOND)
    assert house.phase == "naive"
    house.children[0].found(candidate())
    house.idle = {2}
    house.go(30 * SECOND)
    assert house.phase == "trial"
    assert house.schedules.describe()["pairs"] == 0  # type: ignore[index]


@pytest.mark.parametrize("how", ["dies", "none"])
def test_a_child_that_fails_changes_nothing(how: str) -> None:
    house = House()
    house.refuse = how == "none"
    two(house)
    if how == "dies":
        house.children[0].ended("ended by signal 9")
    house.go(5 * SECOND)
    assert house.phase == "naive"
    assert not house.published
    assert house.events() == ["schedule-search-failed"]
    assert len(house.children) == (how == "dies")


def test_a_schedule_that_says_nothing_is_not_tried() -> None:
    house = House()
    two(house)
    house.children[0].found(candidate(hints=NONE))
    house.go(5 * SECOND)
    assert house.phase == "naive"
    assert not house.published


def test_too_many_networks_are_left_alone() -> None:
    house = House()
    house.plans = {model: 10 + model for model in range(1, 10)}
    house.ended, house.spent = dict.fromkeys(house.plans, 0.0), dict.fromkeys(house.plans, 0.0)
    house.schedules.begin(1, list(house.plans), "latency")
    house.go(2 * SECOND)
    assert house.phase == "naive"
    assert not house.children
    assert "at most" in house.schedules.describe()["why"]  # type: ignore[index]


def test_rounds() -> None:
    assert rounds([10, 10]) == [1, 1]
    assert rounds([31, 10]) == [3, 1]
    assert rounds([1000, 1]) == [MOST_TIMES, 1]
    assert sum(rounds([9, 9, 9, 2])) <= 8
    assert rounds([1] * 10) == [1] * 10
