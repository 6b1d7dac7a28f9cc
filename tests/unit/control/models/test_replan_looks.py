"""When plans are made again: when the cores have been others, and then the same, for some looks."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from aspen_mp.control.server import STEADY, Server
from aspen_mp.control.wire import protocol


class Fake(SimpleNamespace):
    """As much of a planner process as there is to a look: `cores` are the speeds of its workers' cores."""

    def __init__(self) -> None:
        super().__init__(cores=[1.0], refreshed=0, _planned_for=[1.0], _steady=0, _follows=False, _refused="")
        nothing: Any = lambda *_: None  # noqa: E731
        pool: Any = type("Pool", (SimpleNamespace,), {"__len__": lambda pool: len(self.cores)})
        self._core_speeds = SimpleNamespace(look=nothing, gives={})
        self._table = SimpleNamespace(paces=list)
        self._machine = SimpleNamespace(cores=(), speeds=lambda cpus, gives: self.cores)
        self._pool = pool(cpus=nothing, settle=nothing, start=self._start, leave=self._leave)
        self._config = SimpleNamespace(replan=True)
        self._recovery = SimpleNamespace(going_on=False)
        self._models = SimpleNamespace(refresh=self._refresh)
        for name in ("_speeds", "_plan_for_now", "_replan", "_settle", "_resize"):
            setattr(self, name, partial(getattr(Server, name), self))
        self._preferred = list

    def _start(self, n: int, cores: object) -> None:
        self.cores = [1.0] * (len(self.cores) + n)

    def _leave(self, n: int, cores: object) -> None:
        self.cores = [1.0] * (len(self.cores) - n)

    def _refresh(self) -> None:
        self.refreshed += 1

    def look(self, n: int = 1) -> int:
        """How often plans would have been made again in these looks."""
        before = self.refreshed
        for _ in range(n):
            self._replan()
        return self.refreshed - before


def resized(server: Fake, n: int) -> None:
    server._resize(protocol.Resize(1, total=n))


def settled(server: Fake, n: int) -> None:
    server.cores = [1.0] * n
    server._settle(n)


def slower(server: Fake, n: int) -> None:
    """Nobody tells: the look finds it."""
    server.cores = [1.0, *[0.5] * n]


@pytest.mark.parametrize("change", [resized, settled, slower])
def test_some_looks_after_a_change(change: Any) -> None:
    server = Fake()
    assert server.look(10) > 0
    for n in (4, 2, 3):
        change(server, n)
        assert server.look(STEADY) == 0
    assert server.look(1) == 1
    assert server.look(1) == 1
    server.cores = [speed * 0.9 for speed in server.cores]  # about the same
    assert server.look(1) == 1
