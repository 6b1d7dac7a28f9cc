"""Front ends that find no runtime: the next ones wait for it, and where it is there all the time the server ends. Without a server."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from aspen_mp.errors import AspenError, RuntimeLost, RuntimeNotFound

pytest.importorskip("uvicorn", reason="serving is an extra: pip install 'aspen-mp[serve]'")

from aspen_mp.serving import front_end
from aspen_mp.serving.front_end import RUNTIME_GONE
from aspen_mp.serving.supervisor import MOST_STILLBORN, Supervisor, _FrontEnd


@pytest.mark.parametrize("error", [RuntimeLost("gone"), RuntimeNotFound("none")], ids=lambda error: type(error).__name__)
def test_a_front_end_says_that_it_has_found_no_runtime(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    uvloop = pytest.importorskip("uvloop")
    monkeypatch.setattr(uvloop, "run", asyncio.run)  # whose loops leave nothing in this process

    async def fails(_: object) -> None:
        raise error

    monkeypatch.setattr(front_end, "_main", fails)
    monkeypatch.setattr(front_end.process, "die_with", lambda parent: None)
    monkeypatch.setattr(front_end.signals, "signal", lambda *_: None)
    monkeypatch.setattr(front_end.gc, "freeze", lambda: None)
    monkeypatch.setattr(msgspec.json, "decode", lambda *_, **__: SimpleNamespace(parent=0))
    monkeypatch.setattr(sys, "argv", ["front_end", "{}"])
    with pytest.raises(SystemExit) as ended:
        front_end.main()
    assert ended.value.code == RUNTIME_GONE


class Short(Supervisor):
    """A supervisor whose front ends end at once. `statuses`: theirs, in their order. `lost`: starts after which the runtime is lost."""

    def __init__(self, statuses: list[int], lost: frozenset[int] = frozenset()) -> None:
        super().__init__(SimpleNamespace(), SimpleNamespace(), SimpleNamespace(), [], [])  # type: ignore[arg-type]
        self.statuses, self.lost, self.starts = statuses, lost, 0

    async def _start(self, ledger: int, part: int) -> Any:
        self.starts += 1
        number = self.starts

        async def ends() -> int:
            self._losses += number in self.lost
            if number == len(self.statuses):
                self._stopping.set()
            return self.statuses[number - 1]

        return _FrontEnd(SimpleNamespace(wait=ends, pid=number), SimpleNamespace(close=lambda: None))  # type: ignore[arg-type]

    async def _hear(self, front_end: Any) -> None:
        """It says nothing."""


def test_a_runtime_that_is_lost_again_and_again_ends_no_server() -> None:
    many = 5 * MOST_STILLBORN
    server = Short([RUNTIME_GONE] * many, frozenset(range(MOST_STILLBORN - 1, many, MOST_STILLBORN - 1)))
    asyncio.run(server._keep_front_end(0, 0))
    assert server.starts == many


@pytest.mark.parametrize("status", [RUNTIME_GONE, 1])
def test_a_server_ends_where_its_front_ends_cannot_begin(status: int) -> None:
    server = Short([status] * (MOST_STILLBORN + 1))
    with pytest.raises(AspenError, match=f"the last one with status {status}"):
        asyncio.run(server._keep_front_end(0, 0))
    assert server.starts == MOST_STILLBORN


def test_front_ends_wait_for_the_runtime() -> None:
    server = Short([RUNTIME_GONE])

    async def go() -> None:
        server._present.clear()
        keeping = asyncio.ensure_future(server._keep_front_end(0, 0))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not server.starts
        server._present.set()
        await keeping

    asyncio.run(go())
    assert server.starts == 1
