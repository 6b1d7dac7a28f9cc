"""`Model.map` and `Model.map_async` against a reference of a few lines: errors of the source, of items and of results, keys, progress."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import numpy as np
import pytest
import small_models

import aspen_mp
from aspen_mp.client import streaming
from aspen_mp.errors import RequestError

Step = tuple[str, int]
"""What a source does for an item: "item", "bad" (inputs of a wrong shape), "odd" (no pair, with keys), "raise"; and the item's value."""


@pytest.fixture(scope="module")
def gather(shared_runtime: aspen_mp.Runtime) -> aspen_mp.Model:
    """Fails for some values: an index that is out of range."""
    return shared_runtime.load(small_models.gather())


def inputs(value: int) -> np.ndarray[Any, Any]:
    return np.array([value % 4, 1, 2])


class Resuming:
    """An iterator that raises for some items, and goes on."""

    def __init__(self, steps: list[Step], keys: bool) -> None:
        self._steps, self._keys = iter(steps), keys

    def __iter__(self) -> Resuming:
        return self

    def __next__(self) -> Any:
        return made(next(self._steps), self._keys)


def made(step: Step, keys: bool) -> Any:
    what, value = step
    if what == "raise":
        raise OSError(f"item {value} cannot be read")
    array = {"item": inputs(value), "bad": np.zeros((1, 5), np.int64), "late": np.array([99, 0, 0]), "odd": inputs(value)}[what]
    return array if not keys or what == "odd" else (f"k{value}", array)


def generator(steps: list[Step], keys: bool) -> Iterator[Any]:
    for step in steps:
        yield made(step, keys)


async def slowly(steps: Iterator[Any]) -> AsyncIterator[Any]:
    for step in steps:
        await asyncio.sleep(0)
        yield step


class Expected:
    """What a stream of these steps gives: (index, key, outcome) for each item, and the error that ends it."""

    def __init__(self, steps: list[Step], *, resumes: bool, return_exceptions: bool, keys: bool) -> None:
        self.items: list[tuple[int, str | None, Any]] = []
        self.error: type[Exception] | None = None
        for index, (what, value) in enumerate(steps):
            key = f"k{value}" if keys and what not in {"raise", "odd"} else None
            fails = OSError if what == "raise" else RequestError if what in {"bad", "late"} or (what == "odd" and keys) else None
            if fails is not None and not return_exceptions:
                self.error = fails
                return
            self.items.append((index, key, fails if fails is not None else value))
            if what == "raise" and not resumes:
                return


def check(found: list[Any], expected: Expected, model: aspen_mp.Model, *, ordered: bool, keys: bool) -> None:
    if ordered or keys:
        pairs = found if keys else [(None, outcome) for outcome in found]
        named = [(index, *pair) for index, pair in enumerate(pairs)]
    else:
        named = sorted(((index, None, outcome) for index, outcome in found), key=lambda item: item[0])
    if not ordered and keys:  # each result is found by its key
        at = {key: index for index, key, _ in expected.items}
        named = sorted(((at[key], key, outcome) for _, key, outcome in named), key=lambda item: item[0])
        assert [key for _, key, _ in named] == [key for _, key, _ in sorted(expected.items, key=lambda item: at[item[1]])]
        wanted = sorted(expected.items, key=lambda item: at[item[1]])
        by_index = {index: outcome for index, _, outcome in wanted}
        for index, key, outcome in named:
            if key is not None:
                same(outcome, by_index[index], model)
        return
    assert len(named) == len(expected.items)
    for (index, key, outcome), (i, k, wanted_outcome) in zip(named, expected.items, strict=True):
        assert (index, key) == (i, k if keys else None)
        same(outcome, wanted_outcome, model)


def same(outcome: Any, wanted: Any, model: aspen_mp.Model) -> None:
    if isinstance(wanted, type):
        assert isinstance(outcome, wanted)
    else:
        assert {name: y.tobytes() for name, y in outcome.items()} == {name: y.tobytes() for name, y in model.run(inputs(wanted)).items()}


def collected(stream: Iterator[Any]) -> tuple[list[Any], Exception | None]:
    found: list[Any] = []
    try:
        found.extend(stream)
    except Exception as error:
        return found, error
    return found, None


def collected_async(model: aspen_mp.Model, source: Any, arguments: dict[str, Any]) -> tuple[list[Any], Exception | None]:
    async def go() -> tuple[list[Any], Exception | None]:
        found: list[Any] = []
        try:
            async for outcome in model.map_async(source, **arguments):
                found.append(outcome)  # noqa: PERF401
        except Exception as error:
            return found, error
        return found, None

    return asyncio.run(go())


@pytest.mark.parametrize("seed", range(60))
def test_any_source_against_the_reference(gather: aspen_mp.Model, seed: int) -> None:
    rng = random.Random(seed)
    keys, ordered, return_exceptions, resumes = (rng.random() < 0.5 for _ in range(4))
    return_exceptions = return_exceptions or rng.random() < 0.5
    kinds = ["item"] * rng.randrange(2, 9) + rng.sample(["bad", "late", "raise", "odd"], rng.randrange(5))
    steps = [(rng.choice(kinds), value) for value in range(rng.randrange(25))]
    source: Any = Resuming(steps, keys) if resumes else generator(steps, keys)
    arguments = {"keys": keys, "ordered": ordered, "return_exceptions": return_exceptions, "concurrency": rng.choice((1, 2, 5))}
    way = rng.choice(("map", "map_async", "asynchronous source"))
    if way == "asynchronous source":
        source, resumes = slowly(source), False
    found, error = collected(gather.map(source, **arguments)) if way == "map" else collected_async(gather, source, arguments)
    expected = Expected(steps, resumes=resumes, return_exceptions=return_exceptions, keys=keys)
    where = f"seed {seed}: {way}, {arguments}, {steps}"
    assert isinstance(error, expected.error or type(None)), where
    if error is None:
        check(found, expected, gather, ordered=ordered, keys=keys)
    elif ordered:
        assert error.__notes__[0].startswith(f"item {len(found)} of the iterable"), where
        assert len(found) == len(expected.items), where
    else:
        assert len(found) <= len(steps), where


def test_pools_that_raise_for_one_item(gather: aspen_mp.Model) -> None:
    """What `Pool.imap` raises stands in its place, and the rest follows; an executor's `map` ends with it."""

    def decode(value: int) -> Any:
        return made(("raise" if value == 7 else "item", value), False)

    with ThreadPool(2) as pool:
        found = list(gather.map(pool.imap(decode, range(20)), return_exceptions=True, total=20))
    assert [k for k, outcome in enumerate(found) if isinstance(outcome, OSError)] == [7]
    assert len(found) == 20
    with ThreadPoolExecutor(2) as executor:
        found = list(gather.map(executor.map(decode, range(20)), return_exceptions=True))
    assert [type(outcome) for outcome in found[7:]] == [OSError]
    assert found[7].__notes__ == ["item 7 of the iterable"]


@pytest.mark.parametrize("way", ["map", "map_async"])
def test_a_source_that_is_broken_for_good_ends(gather: aspen_mp.Model, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(streaming, "MOST_ERRORS", 5)

    class Broken(Resuming):
        def __next__(self) -> Any:
            return made(next(self._steps, ("raise", 0)), False)

    source = Broken([("item", 1), *[("raise", 0)] * 4, ("item", 2)], False)
    arguments: dict[str, Any] = {"return_exceptions": True}
    found, error = collected(gather.map(source, **arguments)) if way == "map" else collected_async(gather, source, arguments)
    assert isinstance(error, OSError)
    assert [isinstance(outcome, OSError) for outcome in found] == [False, *[True] * 4, False, *[True] * 4]


def test_notes_name_the_key(gather: aspen_mp.Model) -> None:
    with pytest.raises(RequestError, match="shape") as caught:
        list(gather.map([("good.png", inputs(1)), ("bad.png", np.zeros((1, 5), np.int64))], keys=True))
    assert caught.value.__notes__ == ["item 1 of the iterable, key 'bad.png'"]
    with pytest.raises(RequestError, match=r"model 'gather': keys=True takes pairs \(key, inputs\), not a ndarray as an item"):
        list(gather.map([inputs(1)], keys=True))


def test_total(gather: aspen_mp.Model) -> None:
    seen: list[tuple[int, int | None]] = []
    tell = lambda done, total: seen.append((done, total))  # noqa: E731
    list(gather.map((inputs(k) for k in range(2)), progress=tell, total=2))
    list(gather.map([inputs(1)], progress=tell, total=5))
    collected_async(gather, slowly(iter([inputs(1)])), {"progress": tell, "total": 1})
    assert seen == [(1, 2), (2, 2), (1, 5), (1, 1)]
    with pytest.raises(ValueError, match="total"):
        gather.map([], total=-1)


def test_lines_where_there_is_no_terminal(gather: aspen_mp.Model, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """The last one says the end; with a shorter time between two there is one for each item. None has control characters."""
    list(gather.map((inputs(k) for k in range(3)), progress=True, total=3))
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("3 of 3 items, ")
    monkeypatch.setattr(streaming, "LINE_S", 0.0)
    list(gather.map((inputs(k) for k in range(3)), progress=True, total=4))
    lines = capfd.readouterr().err.splitlines()
    assert [text.partition(" items")[0] for text in lines] == ["1 of 4", "2 of 4", "3 of 4"]
    assert all(text.isprintable() and text.endswith(" left") for text in lines)
    list(gather.map((inputs(k) for k in range(2)), progress=True))
    assert [text.partition(" items")[0] for text in capfd.readouterr().err.splitlines()] == ["1", "2"]
