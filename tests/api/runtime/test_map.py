"""`Model.map` and `Model.map_async`: order, back-pressure, errors, early ends, several stages, threads, lost workers and runtimes."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import threading
import time
from collections import deque

import numpy as np
import pytest
import small_models
from process_tools import without_workers

import aspen_mp
from aspen_mp.errors import RequestError, RequestTimeout, RuntimeLost

WATCHDOG_S = 60.0


def x_of(seed: int, batch: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def mlp(shared_runtime):
    return shared_runtime.load(small_models.mlp("n"))


@pytest.fixture(scope="module")
def slow(shared_runtime):
    """A request of this takes some milliseconds."""
    return shared_runtime.load(small_models.conv_chain(12, 48, 48))


@pytest.fixture(scope="module")
def two(shared_runtime):
    return shared_runtime.load(small_models.two_inputs())


@pytest.fixture(scope="module")
def staged(shared_runtime):
    return shared_runtime.load(small_models.nonzero())


@pytest.fixture(scope="module")
def of_one_and_three_instances(shared_runtime):
    return {n: shared_runtime.load(small_models.mlp(n), instances=n) for n in (1, 3)}


def image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 48, 48, 48)).astype(np.float32)


class Source:
    """Counts what is taken from it; says how many were taken but not yet given back."""

    def __init__(self, items) -> None:
        self.items = iter(items)
        self.taken = 0
        self.most_open = 0
        self.given = 0

    def __iter__(self):
        return self

    def __next__(self):
        item = next(self.items)
        self.taken += 1
        self.most_open = max(self.most_open, self.taken - self.given)
        return item


def idle(model: aspen_mp.Model) -> bool:
    """Nothing of this process is in flight; waits for what was cancelled."""
    channel = model._tree.session.channel
    deadline = time.monotonic() + WATCHDOG_S
    while channel.in_flight and time.monotonic() < deadline:
        time.sleep(0.001)
    return channel.in_flight == 0


@pytest.mark.parametrize("ordered", [True, False])
def test_results(mlp, ordered):
    items = [x_of(k, batch=1 + k % 3) for k in range(40)]  # shapes change on the way
    expected = [mlp.run({"x": x})["y"].tobytes() for x in items]
    for given in (items, ({"x": x} for x in items)):
        found = mlp.map(given, ordered=ordered)
        pairs = enumerate(found) if ordered else found
        results = {index: y["y"].tobytes() for index, y in pairs}
        assert [results[k] for k in range(40)] == expected
    assert idle(mlp)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("concurrency", [1, 3, None])
def test_takes_only_what_there_are_slots_for(slow, ordered, concurrency):
    source = Source(image(k % 2) for k in itertools.count())
    with slow.map(source, concurrency=concurrency, ordered=ordered) as stream:
        assert source.taken == 0
        for _ in itertools.islice(stream, 12):
            source.given += 1
    limit = concurrency or 2 * slow.instances
    assert source.most_open <= limit
    assert source.taken <= 12 + limit
    assert next(stream, None) is None
    assert idle(slow)


def test_an_iterable_that_blocks_holds_results_up_by_one_item_only(mlp):
    """The result of an item comes before the item after the next is asked for."""
    gate = threading.Event()
    asked = []

    def items():
        for k in range(3):
            asked.append(k)
            if k == 2:
                assert gate.wait(WATCHDOG_S)
            yield x_of(k)

    mlp.run({"x": x_of(0)})
    stream = mlp.map(items(), concurrency=8)
    while not asked or not idle(mlp):  # the first result is there
        if not asked:
            stream._take()
    next(stream)
    assert asked == [0, 1]
    gate.set()
    assert len(list(stream)) == 2


def test_an_empty_iterable_and_wrong_arguments(mlp, two):
    assert list(mlp.map([])) == []
    with pytest.raises(ValueError, match="concurrency"):
        mlp.map([], concurrency=0)
    with pytest.raises(RequestError, match="priority"):
        mlp.map([], priority="urgent")
    with pytest.raises(RequestError, match="no output"):
        mlp.map([], ["z"])
    with pytest.raises(RequestError, match=r"'a', 'b'.*Each item"):
        list(two.map([np.zeros((1, 3), np.float32)]))
    a, b = np.ones((1, 3), np.float32), np.ones(3, np.float32)
    assert [list(y) for y in two.map([{"a": a, "b": b}], ["sum"])] == [["sum"]]


@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_comes_at_its_item(mlp, ordered):
    items = [x_of(0), x_of(1), np.zeros((1, 5), np.float32), x_of(3), x_of(4)]
    stream = mlp.map(items, ordered=ordered, concurrency=2)
    found = []
    with pytest.raises(RequestError, match="shape") as caught:
        found.extend(stream)
    assert caught.value.__notes__ == ["item 2 of the iterable"]
    assert len(found) == 2 if ordered else len(found) <= 3
    assert list(stream) == []
    assert idle(mlp)


@pytest.mark.parametrize("ordered", [True, False])
def test_errors_in_the_place_of_results(mlp, ordered):
    items = [x_of(k) if k % 3 else np.zeros((1, 5), np.float32) for k in range(9)]
    stream = mlp.map(items, ordered=ordered, return_exceptions=True)
    found = dict(enumerate(stream)) if ordered else dict(stream)
    assert sorted(found) == list(range(9))
    assert all(isinstance(found[k], RequestError) == (k % 3 == 0) for k in range(9))


@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_of_the_iterable_comes_after_the_results_before(mlp, ordered):
    def items():
        for k in range(5):
            yield x_of(k)
        raise OSError("the disk is gone")

    found = []
    with pytest.raises(OSError, match="the disk is gone"):
        found.extend(mlp.map(items(), ordered=ordered))
    assert len(found) == 5
    assert idle(mlp)


@pytest.mark.parametrize("ordered", [True, False])
def test_timeout(slow, shared_runtime, ordered):
    slow.run({"x": image(0)})
    with without_workers(shared_runtime):
        with pytest.raises(RequestTimeout, match="cancelled"):
            list(slow.map([image(0)] * 8, ordered=ordered, timeout=0.0))
        found = list(slow.map([image(0)] * 8, ordered=ordered, timeout=0.0, return_exceptions=True))
    errors = found if ordered else [result for _, result in sorted(found, key=lambda pair: pair[0])]
    assert [type(error) for error in errors] == [RequestTimeout] * 8
    assert idle(slow)
    assert len(list(slow.map([image(0)] * 4, timeout=WATCHDOG_S))) == 4


@pytest.mark.parametrize("ordered", [True, False])
def test_forgetting_it_cancels_what_is_in_flight(slow, ordered):
    stream = slow.map((image(0) for _ in itertools.count()), ordered=ordered, concurrency=16)
    next(stream)
    futures = [item.future for item in stream._flying]
    assert futures
    del stream
    gc.collect()
    assert all(future.cancelled() or future.done() for future in futures)
    assert any(future.cancelled() for future in futures)
    assert idle(slow)


@pytest.mark.parametrize("ordered", [True, False])
def test_closing_from_another_thread(runtime, ordered):
    """Who waits for a result learns of the end."""
    model = runtime.load(small_models.mlp("n"))
    runtime.scale(0)
    stream = model.map([x_of(0)] * 4, ordered=ordered)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend(stream))
    thread.start()
    while not stream._flying:
        time.sleep(0.001)
    stream.close()
    thread.join(WATCHDOG_S)
    assert not thread.is_alive()
    assert found == []
    runtime.scale(1)
    assert idle(model)


@pytest.mark.parametrize("ordered", [True, False])
def test_several_threads_take_from_one(mlp, ordered):
    items = [x_of(k) for k in range(60)]
    stream = mlp.map(items, ordered=ordered)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.extend(stream)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG_S)
    assert len(found) == 60


def test_progress(mlp):
    seen = []
    assert len(list(mlp.map([x_of(0)] * 3, progress=lambda done, total: seen.append((done, total))))) == 3
    assert seen == [(1, 3), (2, 3), (3, 3)]
    seen.clear()
    assert len(list(mlp.map((x_of(0) for _ in range(2)), progress=lambda done, total: seen.append((done, total))))) == 2
    assert seen == [(1, None), (2, None)]


def test_a_bar_on_a_terminal(mlp, monkeypatch, capfd):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert len(list(mlp.map([x_of(0)] * 3, progress=True))) == 3
    assert "3/3" in capfd.readouterr().err


def test_models_of_several_stages(staged):
    model = staged
    rng = np.random.default_rng(0)
    items = [np.where(rng.random(20) < 0.5, 0, rng.standard_normal(20)).astype(np.float32) for _ in range(12)]
    for x, y in zip(items, model.map(items), strict=True):
        assert y["y"].tolist() == (x[x != 0] * 2).tolist()
    assert {index for index, _ in model.map(items, ordered=False)} == set(range(12))
    assert idle(model)


def test_a_worker_dies_on_the_way(runtime):
    model = runtime.load(small_models.conv_chain(12, 48, 48))
    expected = [model.run({"x": image(k)})["y"].tobytes() for k in range(4)]
    killed = 0
    for k, y in enumerate(model.map(image(i % 4) for i in range(24))):
        assert y["y"].tobytes() == expected[k % 4]
        if k in (4, 12):
            victims = [w["pid"] for w in runtime.workers if w["pid"]]
            os.kill(victims[0], signal.SIGKILL)
            killed += 1
    assert killed == 2
    assert idle(model)


def test_the_planner_process_dies_on_the_way():
    with aspen_mp.Runtime(workers=2, retry=True) as runtime:
        model = runtime.load(small_models.mlp("n"))
        expected = [model.run({"x": x_of(k)})["y"].tobytes() for k in range(20)]
        for k, y in enumerate(model.map((x_of(i) for i in range(20)), concurrency=3)):
            assert y["y"].tobytes() == expected[k]
            if k == 7:
                os.kill(runtime.pid, signal.SIGKILL)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_lost_runtime_ends_it(ordered):
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.mlp("n"))
        stream = model.map((x_of(0) for _ in itertools.count()), ordered=ordered, return_exceptions=True)
        for _ in range(3):
            next(stream)
        os.kill(runtime.pid, signal.SIGKILL)
        with pytest.raises(RuntimeLost):
            deque(stream, maxlen=0)


def test_default_concurrency_follows_the_instances(of_one_and_three_instances):
    for instances, model in of_one_and_three_instances.items():
        assert model.instances == instances
        assert model.map([])._terms.concurrency == 2 * instances


# ---- asyncio


@pytest.mark.parametrize("ordered", [True, False])
def test_async(mlp, ordered):
    items = [x_of(k) for k in range(20)]
    expected = [mlp.run({"x": x})["y"].tobytes() for x in items]

    async def later():
        for x in items:
            await asyncio.sleep(0)
            yield x

    async def go(given):
        found = [y async for y in mlp.map_async(given, ordered=ordered)]
        return dict(enumerate(found)) if ordered else dict(found)

    for make in (lambda: items, lambda: iter(items), later):
        results = asyncio.run(go(make()))
        assert [results[k]["y"].tobytes() for k in range(20)] == expected
    assert idle(mlp)


def test_async_results_do_not_wait_for_the_source(mlp):
    async def go():
        gate = asyncio.Event()

        async def items():
            yield x_of(0)
            await gate.wait()
            yield x_of(1)

        stream = mlp.map_async(items())
        await asyncio.wait_for(anext(stream), WATCHDOG_S)  # while the source waits
        gate.set()
        return len([y async for y in stream])

    assert asyncio.run(go()) == 1


@pytest.mark.parametrize("ordered", [True, False])
def test_async_errors(mlp, slow, shared_runtime, ordered):
    bad = np.zeros((1, 5), np.float32)

    async def failing():
        yield x_of(0)
        raise OSError("gone")

    async def go():
        with pytest.raises(RequestError) as caught:
            [y async for y in mlp.map_async([x_of(0), bad, x_of(1)], ordered=ordered, concurrency=1)]
        assert caught.value.__notes__ == ["item 1 of the iterable"]
        mixed = [y async for y in mlp.map_async([x_of(0), bad], ordered=ordered, return_exceptions=True)]
        assert len(mixed) == 2
        stream = mlp.map_async(failing(), ordered=ordered)
        await anext(stream)
        with pytest.raises(OSError, match="gone"):
            await anext(stream)
        with without_workers(shared_runtime), pytest.raises(RequestTimeout):
            [y async for y in slow.map_async([image(0)] * 4, ordered=ordered, timeout=0.0)]

    asyncio.run(go())
    assert idle(mlp)


def test_async_early_end(slow):
    taken = []

    async def items():
        for k in itertools.count():
            taken.append(k)
            yield image(0)

    async def go():
        stream = slow.map_async(items(), concurrency=5)
        async for _ in stream:
            break
        await stream.aclose()
        endless = slow.map_async((image(0) for _ in itertools.count()), concurrency=5)
        task = asyncio.ensure_future(_drain(endless))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await endless.aclose()

    asyncio.run(go())
    assert len(taken) <= 7
    assert idle(slow)


async def _drain(stream) -> None:
    async for _ in stream:
        pass
