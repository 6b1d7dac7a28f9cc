"""The share of large bodies in a turn of the loop: it ends, it is renewed, and whoever waits for it is served in order."""

from __future__ import annotations

import asyncio

import serving_tools  # noqa: F401 (skips these without the extra)

from aspen_mp.serving.access import share


def test_a_turn_has_a_share_and_the_next_has_another() -> None:
    async def turn() -> None:
        mine = share.of(asyncio.get_running_loop())
        assert mine is share.of(asyncio.get_running_loop())
        for _ in range(share.MOST // share.PIECE):
            assert not mine.is_used_up
            mine.take(share.PIECE)
        assert mine.is_used_up
        await asyncio.sleep(0)
        assert not mine.is_used_up

    asyncio.run(turn())


def test_small_reads_do_not_count() -> None:
    async def turn() -> None:
        mine = share.of(asyncio.get_running_loop())
        for _ in range(1000):
            mine.take(share.SMALL)
        assert not mine.is_used_up

    asyncio.run(turn())


def test_those_that_wait_have_their_turn_in_order() -> None:
    async def turns() -> None:
        mine = share.of(asyncio.get_running_loop())
        readers = list("abcdefghij")
        served: list[tuple[str, int]] = []
        number = 0

        def ready(reader: str) -> None:
            assert not mine.is_used_up
            served.append((reader, number))

        mine.take(share.MOST)
        for reader in readers:
            mine.wait(lambda reader=reader: ready(reader))  # type: ignore[misc]
        while len(served) < len(readers):
            number += 1
            await asyncio.sleep(0)
        assert [reader for reader, _ in served] == readers
        each = share.MOST // share.PIECE
        assert [number - served[0][1] for _, number in served] == [k // each for k in range(len(readers))]

    asyncio.run(turns())
