"""Event loops that take results themselves: several of them, closed ones, busy ones, forks, and threads beside them."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import linecache
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import small_models
from process_tools import without_workers

import aspen_mp
from aspen_mp.client.future import RequestFuture
from aspen_mp.client.session import Session
from aspen_mp.errors import RequestError, RequestTimeout, RuntimeLost

WATCHDOG_S = 60.0


def x_of(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((4, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def mlp(shared_runtime):
    return shared_runtime.load(small_models.mlp())


@pytest.fixture(scope="module")
def chain(shared_runtime):
    """A request of this takes long enough to be met while it runs."""
    return shared_runtime.load(small_models.conv_chain(24, 64, 64))


def chain_input() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((1, 64, 64, 64)).astype(np.float32)}


def makers() -> list:
    found = [pytest.param(asyncio.new_event_loop, id="asyncio")]
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        uvloop.new_event_loop().close()  # libuv keeps a pipe for the whole process
        found.append(pytest.param(uvloop.new_event_loop, id="uvloop"))
    return found


@pytest.mark.parametrize("make", makers())
def test_results_come_on_the_loop(mlp, monkeypatch, make):
    """No thread of Python is between."""
    x = x_of()
    expected = mlp.run({"x": x})["y"]
    takers = []
    take = Session.take

    def noted(self: Session, loop: object) -> None:
        takers.append(threading.get_ident())
        take(self, loop)

    monkeypatch.setattr(Session, "take", noted)

    async def several() -> list[dict[str, np.ndarray]]:
        return [result for _ in range(10) for result in await asyncio.gather(*(mlp.run_async({"x": x}) for _ in range(20)))]

    with asyncio.Runner(loop_factory=make) as runner:
        results = runner.run(several())
    assert all(result["y"].tobytes() == expected.tobytes() for result in results)
    assert set(takers) == {threading.get_ident()}


@pytest.mark.parametrize("make", makers())
def test_one_loop_after_the_other(mlp, make):
    """The descriptor of one that is closed is closed, too."""
    before = set(os.listdir("/proc/self/fd"))
    for seed in range(5):
        x = x_of(seed)
        with asyncio.Runner(loop_factory=make) as runner:
            result = runner.run(mlp.run_async({"x": x}))
        np.testing.assert_array_equal(result["y"], mlp.run({"x": x})["y"])
    assert len(set(os.listdir("/proc/self/fd"))) <= len(before)


def test_loops_and_threads_at_the_same_time(mlp):
    expected = [mlp.run({"x": x_of(seed)})["y"] for seed in range(4)]
    wrong = []

    async def ask(seed: int) -> None:
        for _ in range(50):
            results = await asyncio.gather(*(mlp.run_async({"x": x_of(seed)}) for _ in range(3)))
            wrong.extend(result for result in results if result["y"].tobytes() != expected[seed].tobytes())

    def submit(seed: int) -> None:
        for _ in range(50):
            futures = [mlp.submit({"x": x_of(seed)}) for _ in range(3)]
            wrong.extend(f for f in futures if f.result(WATCHDOG_S)["y"].tobytes() != expected[seed].tobytes())

    threads = [threading.Thread(target=lambda seed=seed: asyncio.run(ask(seed))) for seed in range(2)]
    threads += [threading.Thread(target=submit, args=(seed,)) for seed in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()
    assert not wrong


def test_more_requests_than_slots(mlp):
    """Those that are queued are the loop's, too."""
    x = x_of()
    expected = mlp.run({"x": x})["y"].tobytes()

    async def many() -> list[dict[str, np.ndarray]]:
        return await asyncio.gather(*(mlp.run_async({"x": x}) for _ in range(700)))

    assert all(result["y"].tobytes() == expected for result in asyncio.run(many()))


def test_a_loop_is_closed_with_requests_in_flight(chain, mlp):
    """Their memory comes back, and another loop gets its results."""
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(chain.run_async(chain_input())) for _ in range(4)]
    loop.run_until_complete(asyncio.sleep(0))
    for task in tasks:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(asyncio.gather(*tasks))
    late = loop.create_task(chain.run_async(chain_input()))
    loop.run_until_complete(asyncio.sleep(0))
    late.cancel()
    loop.run_until_complete(asyncio.wait([late]))
    loop.close()
    assert asyncio.run(mlp.run_async({"x": x_of()}))["y"].tobytes() == mlp.run({"x": x_of()})["y"].tobytes()
    deadline = time.monotonic() + WATCHDOG_S
    while chain._tree.session.channel.in_flight:  # the resolver has taken what was the closed loop's
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_loop_that_is_busy(mlp):
    """The resolver takes its results meanwhile."""

    async def ask() -> bool:
        task = asyncio.create_task(mlp.run_async({"x": x_of()}))
        await asyncio.sleep(0)
        deadline = time.monotonic() + WATCHDOG_S
        while mlp._tree.session.channel.in_flight:  # the loop does not run
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert not task.done()
        return (await task)["y"].tobytes() == expected

    expected = mlp.run({"x": x_of()})["y"].tobytes()
    assert asyncio.run(ask())


def test_a_loop_that_stops_for_good(mlp):
    """Another loop, and threads, have their results; what it left behind ends."""
    stopped = asyncio.new_event_loop()
    left = stopped.create_task(mlp.run_async({"x": x_of()}))
    stopped.run_until_complete(asyncio.sleep(0))
    assert asyncio.run(mlp.run_async({"x": x_of(1)}))["y"].tobytes() == mlp.run({"x": x_of(1)})["y"].tobytes()
    assert mlp.submit({"x": x_of(2)}).result(WATCHDOG_S)["y"].shape == (4, 8)
    deadline = time.monotonic() + WATCHDOG_S
    while mlp._tree.session.channel.in_flight:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert stopped.run_until_complete(left)["y"].tobytes() == mlp.run({"x": x_of()})["y"].tobytes()
    stopped.close()


def test_errors_on_the_loop(shared_runtime, mlp):
    model = shared_runtime.load(small_models.gather())
    good, bad = ({"i": np.array([0, 1, row], np.int64)} for row in (2, 77))

    async def ask() -> list[object]:
        asked = [model.run_async(feeds) for feeds in (good, bad, good, bad)]
        return await asyncio.gather(*asked, mlp.run_async({"x": x_of()}), return_exceptions=True)

    model.run(good)
    found = asyncio.run(ask())
    assert [type(each) for each in found] == [dict, RequestError, dict, RequestError, dict]


def test_a_model_is_unloaded_while_a_loop_waits_for_it(shared_runtime):
    """Its last request gives it back, without a word of the loop to the planner process."""
    model = shared_runtime.load(small_models.conv_chain(23, 64, 64))
    model.run(chain_input())

    async def ask() -> np.ndarray:
        task = asyncio.create_task(model.run_async(chain_input()))
        await asyncio.sleep(0)
        model.unload()
        return (await task)["y"]

    assert asyncio.run(ask()).shape == (1, 64, 64, 64)
    deadline = time.monotonic() + WATCHDOG_S
    while any(known["id"] == model.number for known in shared_runtime.status()["models"]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_request_times_out_beside_a_loop(shared_runtime, mlp):
    """Its memory comes back, although the loop alone has waited before."""
    chain = shared_runtime.load(small_models.conv_chain(22, 64, 64))
    chain.run(chain_input())
    asyncio.run(mlp.run_async({"x": x_of()}))
    with without_workers(shared_runtime), pytest.raises(RequestTimeout):
        chain.run(chain_input(), timeout=1e-6)
    deadline = time.monotonic() + WATCHDOG_S
    while chain._tree.session.channel.in_flight:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_resolver_ends_with_the_runtime():
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.mlp())
        model.submit({"x": x_of()}).result(WATCHDOG_S)
        resolver = model._tree.session._resolver
        os.kill(runtime.pid, signal.SIGKILL)
        resolver.join(WATCHDOG_S)
        assert not resolver.is_alive()


def test_the_runtime_is_lost():
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.conv_chain(24, 64, 64))
        model.run(chain_input())

        async def ask() -> list[object]:
            asked = [asyncio.ensure_future(model.run_async(chain_input())) for _ in range(8)]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            os.kill(runtime.pid, signal.SIGKILL)
            return await asyncio.gather(*asked, return_exceptions=True)

        found = asyncio.run(ask())
        assert {type(each) for each in found} <= {dict, RuntimeLost}
        assert type(found[-1]) is RuntimeLost


def test_the_runtime_is_closed_on_the_loop():
    async def ask() -> None:
        with aspen_mp.Runtime(workers=1) as runtime:
            model = runtime.load(small_models.mlp())
            await model.run_async({"x": x_of()})

    asyncio.run(ask())


def test_a_forked_child_has_a_loop_of_its_own(mlp):
    """What the parent's loop is told, the child does not hear; its descriptors are closed there."""
    expected = mlp.run({"x": x_of()})["y"].tobytes()

    async def ask() -> None:
        assert (await mlp.run_async({"x": x_of()}))["y"].tobytes() == expected
        event = _event(str(mlp._tree.session.channel.event()))
        assert event
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                asyncio.events._set_running_loop(None)
                events = [fd for fd in os.listdir("/proc/self/fd") if _event(fd) == event]
                assert (asyncio.new_event_loop().run_until_complete(mlp.run_async({"x": x_of()})))["y"].tobytes() == expected
                status = 0 if not events else 2
            finally:
                os._exit(status)
        for _ in range(20):
            assert (await mlp.run_async({"x": x_of()}))["y"].tobytes() == expected
        assert os.waitpid(pid, 0)[1] == 0

    asyncio.run(ask())


def _event(fd: str) -> str:
    """What tells an eventfd from all others; "" for other descriptors."""
    try:
        about = Path(f"/proc/self/fdinfo/{fd}").read_text()
    except OSError:
        return ""
    return next((line for line in about.splitlines() if line.startswith("eventfd-id:")), "")


@pytest.mark.parametrize("answer", [lambda future: future.finish({}), lambda future: future.fail(RequestError("no"))])
def test_an_interrupt_at_any_line_leaves_no_future_without_an_answer(answer):
    """As Ctrl-C in the thread of a loop, where it takes results."""
    for last in itertools.count(1):
        future, lines = RequestFuture(), 0

        def trace(frame, event, _, last=last):
            nonlocal lines
            if not frame.f_code.co_filename.endswith("client/future.py"):
                return None
            words = linecache.getline(frame.f_code.co_filename, frame.f_lineno).split()
            lines += event == "line" and words[0] not in {"try:", "except"}
            if lines == last:
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            answer(future)
        except KeyboardInterrupt as error:
            sys.settrace(None)
            future.fail(error)  # as what has called does
        else:
            break
        finally:
            sys.settrace(None)
        assert future.done()
    assert last > 4
