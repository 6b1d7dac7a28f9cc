"""Every way of asking a model for the same results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import aspen_mp


def in_every_way(model: aspen_mp.Model, feeds: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What `run`, `submit`, `map` and their counterparts for asyncio give, copies or not; shapes new to the model only for the first."""

    async def awaited() -> list[dict[str, Any]]:
        streamed = [results async for results in model.map_async([feeds, feeds], concurrency=1)]
        return [await model.run_async(feeds), await model.run_async(feeds, copy=False), *streamed]

    yield model.run(feeds)
    yield from asyncio.run(awaited())
    yield model.run(feeds)
    yield model.submit(feeds).result()
    yield model.submit(feeds, copy=False).result()
    yield from model.map([feeds, feeds])
