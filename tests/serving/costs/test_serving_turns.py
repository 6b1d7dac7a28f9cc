"""Works in pieces: each turn of the loop has one, in the order in which they were asked for, and whoever goes away holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest
import serving_tools  # noqa: F401 (skips these without the extra)

from aspen_mp.serving.protocol import turns

Pieces = list[tuple[str, int]]


class Turns:
    """Counts the turns of a loop."""

    def __init__(self) -> None:
        self.number = 0
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self.number += 1
        asyncio.get_running_loop().call_soon(self._next)


def work(name: str, pieces: int, done: Pieces, counted: Turns, *, fails: bool = False) -> Generator[None, None, str]:
    for _ in range(pieces):
        done.append((name, counted.number))
        yield
    if fails:
        raise ValueError(name)
    done.append((name, counted.number))
    return name


def test_each_turn_has_one_piece() -> None:
    async def all_of_them() -> None:
        done: Pieces = []
        counted = Turns()
        works = [turns.run(work(name, pieces, done, counted)) for name, pieces in (("a", 3), ("b", 1), ("c", 5))]
        assert await asyncio.gather(*works, turns.call(lambda: "d")) == ["a", "b", "c", "d"]
        assert "".join(name for name, _ in done) == "aabcabcacccc"  # "a" has asked for its second turn before the others are there
        assert len({number for _, number in done}) == len(done)

    asyncio.run(all_of_them())


def test_an_error_ends_its_own_work_only() -> None:
    async def both() -> None:
        done: Pieces = []
        counted = Turns()
        found = await asyncio.gather(
            turns.run(work("a", 2, done, counted, fails=True)), turns.run(work("b", 4, done, counted)), return_exceptions=True
        )
        assert isinstance(found[0], ValueError)
        assert found[1] == "b"

    asyncio.run(both())


@pytest.mark.parametrize("after", range(12))
def test_one_that_is_cancelled_holds_nobody_up(after: int) -> None:
    closed = []

    def watched(counted: Turns, done: Pieces) -> Generator[None, None, str]:
        try:
            return (yield from work("a", 20, done, counted))
        finally:
            closed.append(True)

    async def three() -> None:
        done: Pieces = []
        counted = Turns()
        first, second, third = (
            asyncio.create_task(turns.run(each))
            for each in (work("b", 5, done, counted), watched(counted, done), work("c", 5, done, counted))
        )
        for _ in range(after):
            await asyncio.sleep(0)
        second.cancel()
        assert await asyncio.wait_for(asyncio.gather(first, third), 60) == ["b", "c"]
        assert len({number for _, number in done}) == len(done)
        with pytest.raises(asyncio.CancelledError):
            await second
        assert bool(closed) == any(name == "a" for name, _ in done)

    asyncio.run(three())


def test_a_work_at_once_has_no_turn() -> None:
    async def one() -> None:
        done: Pieces = []
        assert turns.at_once(work("a", 9, done, Turns())) == "a"
        assert {number for _, number in done} == {0}

    asyncio.run(one())
