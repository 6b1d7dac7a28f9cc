"""The fast path of a request: which requests take it, and that nothing but their time tells them from the others."""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import linecache
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pytest
import small_models
from process_tools import without_workers

import aspen_mp
from aspen_mp.client.future import RequestFuture
from aspen_mp.client.model import Model
from aspen_mp.client.requests.stage import Stage
from aspen_mp.errors import RequestError, RequestTimeout, RuntimeLost

WATCHDOG_S = 60.0


def x_of(batch: int = 4) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, 16)).astype(np.float32)


def taken(model: Model) -> int:
    """Requests that have taken the fast path since the last call."""
    return 0 if model._fast_path is None else model._fast_path.drain()


@pytest.fixture
def mlp(shared_runtime: aspen_mp.Runtime) -> Iterator[Model]:
    model = shared_runtime.load(small_models.mlp("n"))
    yield model
    model.unload()


def test_from_the_second_request_of_a_shape_on(mlp: Model) -> None:
    x, other = {"x": x_of()}, {"x": x_of(3)}
    expected = mlp.run(x)["y"]
    assert taken(mlp) == 0
    for n in range(3):
        got = mlp.run(x)["y"]
        assert got.tobytes() == expected.tobytes()
        assert got.flags.owndata
        assert got.flags.writeable
        assert taken(mlp) == 1, n
    assert mlp.run(other)["y"].shape[0] == 3  # another shape, another path
    assert taken(mlp) == 0
    mlp.run(other)
    assert taken(mlp) == 1


def strided(x: np.ndarray) -> np.ndarray:
    return np.asfortranarray(x)


def subclass(x: np.ndarray) -> np.ndarray:
    return x.view(np.matrix)


@pytest.mark.parametrize("form", [strided, subclass, np.ndarray.tolist])
def test_arrays_that_have_to_be_made_first(mlp: Model, form: Any) -> None:
    x = x_of()
    expected = mlp.run({"x": x})["y"]
    assert mlp.run({"x": form(x)})["y"].tobytes() == expected.tobytes()
    assert mlp.run(MappingProxyType({"x": x}))["y"].tobytes() == expected.tobytes()
    assert taken(mlp) == 0
    mlp.run({"x": x[:]})
    assert taken(mlp) == 1


def test_types_that_are_equal_but_not_the_same(mlp: Model) -> None:
    """As those of arrays that came from another process."""
    x = x_of()
    expected = mlp.run({"x": x})["y"]
    other = pickle.loads(pickle.dumps(x))
    assert other.dtype is not x.dtype
    assert mlp.run({"x": other})["y"].tobytes() == expected.tobytes()
    assert taken(mlp) == 1
    swapped = x.byteswap().view(x.dtype.newbyteorder())
    with pytest.raises(RequestError, match=">f4"):
        mlp.run({"x": swapped})
    assert taken(mlp) == 0


def test_what_is_wrong_is_said_as_ever(mlp: Model) -> None:
    x = x_of()
    for _ in range(2):
        mlp.run({"x": x})
    taken(mlp)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"x": x.astype(np.float64)}, "float64"),
        ({"x": x[:, :15]}, "shape"),
        ({"x": x[0]}, "shape"),
        ({}, "missing"),
        ({"x": x, "z": x}, "no input 'z'"),
        ({"z": x}, r"no input 'z'\. It has x"),
    ]
    for feeds, message in bad:
        with pytest.raises(RequestError, match=message):
            mlp.run(feeds)
    with pytest.raises(RequestError, match="no output 'q'"):
        mlp.run({"x": x}, ["q"])
    with pytest.raises(RequestError, match="priority 'soon'"):
        mlp.run({"x": x}, priority="soon")
    assert mlp.run({"x": x}, [], priority="high") == {}
    assert list(mlp.run({"x": x}, ["y"], priority="low", timeout=WATCHDOG_S)) == ["y"]
    assert taken(mlp) == 2


def test_transfers_are_counted(mlp: Model) -> None:
    x = x_of()
    for _ in range(5):
        mlp.run({"x": x})
    assert (mlp.transfers.requests, mlp.transfers.copied_bytes, mlp.transfers.in_place_bytes) == (5, 5 * x.nbytes, 0)
    assert mlp.transfers.requests == 5
    mlp._tree._roots[(("x", x.shape),)].stage.close()  # type: ignore[union-attr]
    assert mlp.transfers.requests == 5


def test_every_way_says_the_extent(shared_runtime: aspen_mp.Runtime, mlp: Model) -> None:
    """A stage that was told a wrong one is refused on each: alone, by the fast path, through the resolver at once and from its queue."""
    x = {"x": x_of()}
    mlp.run(x)
    session = shared_runtime._link.session()
    planned = mlp._tree._roots[(("x", x["x"].shape),)].stage.planned  # type: ignore[union-attr]
    stage = Stage(session, "m", msgspec.structs.replace(planned, extent=3))
    refusal = r"^model 'm': its plan is for inputs of other lengths$"
    with pytest.raises(RequestError, match=refusal):
        stage.run(x, 1, WATCHDOG_S, None)
    assert stage.fast_path is not None
    with pytest.raises(RequestError, match=refusal):
        stage.fast_path.run(x, None, 1, WATCHDOG_S)
    futures = [RequestFuture() for _ in range(2 * session.channel.capacity)]
    with session._lock:  # until all are submitted the resolver gives no slot back
        for future in futures:
            stage.submit(x, 1, None, future, lambda _: pytest.fail("the plan is there"), lambda *_: False)
        assert len(session.queue) == session.channel.capacity
    for future in futures:
        with pytest.raises(RequestError, match=refusal):
            future.result(WATCHDOG_S)
    stage.close()
    assert mlp.run(x)["y"].shape[0] == 4


def test_a_kernel_that_refuses_its_input(shared_runtime: aspen_mp.Runtime) -> None:
    model = shared_runtime.load(small_models.gather())
    good = {"i": np.array([0, 3, -1])}
    expected = model.run(good)["y"].tobytes()
    for _ in range(20):
        with pytest.raises(RequestError, match=r"model 'gather': .*lookup"):
            model.run({"i": np.array([0, 4, 1])})
    assert taken(model) == 20
    assert model.run(good)["y"].tobytes() == expected
    assert len(model._tree._roots[(("i", (3,)),)].stage._free) == 1  # type: ignore[union-attr]
    model.unload()


def test_time_out(shared_runtime: aspen_mp.Runtime) -> None:
    model = shared_runtime.load(small_models.conv_chain(24, 64, 64))
    x = {"x": np.ones((1, 64, 64, 64), np.float32)}
    expected = model.run(x)["y"].tobytes()
    with without_workers(shared_runtime):
        for timeout in (0.0, 1e-4, 0.0):
            with pytest.raises(RequestTimeout, match="did not finish within"):
                model.run(x, timeout=timeout)
    assert model.run(x, timeout=WATCHDOG_S)["y"].tobytes() == expected
    model.unload()


def test_input_that_users_fill_in_place_is_not_copied(mlp: Model) -> None:
    buffers = mlp.input_buffers({"x": (4, 16)})
    buffers["x"][:] = x_of()
    expected = mlp.run({"x": x_of()})["y"].tobytes()
    before = mlp.transfers.copied_bytes
    for _ in range(3):
        assert mlp.run({"x": buffers["x"]})["y"].tobytes() == expected
    assert mlp.transfers.copied_bytes == before
    del buffers


def wait_for_scarcity(runtime: aspen_mp.Runtime, waiting: int) -> Any:
    session = runtime._link.session()
    deadline = time.monotonic() + WATCHDOG_S
    while session.wanting < waiting:
        assert time.monotonic() < deadline, (session.wanting, session.channel.in_flight)
        time.sleep(0.001)
    return session


def test_more_threads_than_slots(runtime: aspen_mp.Runtime) -> None:
    """Those that find none sleep until one is given back."""
    model = runtime.load(small_models.conv_chain(2, 32, 16))
    x = {"x": np.random.default_rng(0).standard_normal((1, 32, 16, 16)).astype(np.float32)}
    expected = model.run(x)["y"].tobytes()
    runtime.scale(0)  # nobody begins with anything
    threads = runtime._link.session().channel.capacity + 40

    def some() -> int:
        return sum(model.run(x, timeout=WATCHDOG_S)["y"].tobytes() == expected for _ in range(5))

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(some) for _ in range(threads)]
        session = wait_for_scarcity(runtime, 40)
        later = [model.submit(x) for _ in range(20)]  # queued among them
        with pytest.raises(RequestTimeout):
            model.run(x, timeout=0.01)
        runtime.scale(2)
        assert [f.result(WATCHDOG_S) for f in futures] == [5] * threads
        assert all(f.result(WATCHDOG_S)["y"].tobytes() == expected for f in later)
    assert (session.wanting, len(session.queue), session.channel.in_flight) == (0, 0, 0)


def test_who_waits_for_a_slot_learns_that_the_runtime_has_gone() -> None:
    ended: list[BaseException | None] = []
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.mlp())
        x = {"x": x_of()}
        model.run(x)
        runtime.scale(0)

        def one() -> None:
            try:
                model.run(x)
                ended.append(None)
            except BaseException as error:
                ended.append(error)

        threads = [threading.Thread(target=one) for _ in range(runtime._link.session().channel.capacity + 20)]
        for thread in threads:
            thread.start()
        wait_for_scarcity(runtime, 20)
    for thread in threads:
        thread.join(WATCHDOG_S)
    assert not any(thread.is_alive() for thread in threads)
    assert len(ended) == len(threads)
    assert all(isinstance(error, RuntimeLost) for error in ended)
    ended.clear()


class Interrupted(BaseException):
    pass


def test_interrupts_at_any_moment(runtime: aspen_mp.Runtime) -> None:
    """As Ctrl-C in a notebook: what a request writes to belongs to no other request before it has ended."""
    model = runtime.load(small_models.conv_chain(2, 32, 16))
    xs = [{"x": np.full((1, 32, 16, 16), k, np.float32)} for k in range(3)]
    expected = [model.run(x)["y"].tobytes() for x in xs]
    assert len(set(expected)) == 3
    rng = np.random.default_rng(0)

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for n in range(2000):
            k = n % 3
            try:
                signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-6, 4e-4)))
                got = model.run(xs[k], timeout=WATCHDOG_S if n % 2 else None)["y"].tobytes()
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert got == expected[k], n
            except Interrupted:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 100
    all_ends(runtime)
    assert [model.run(x)["y"].tobytes() for x in xs] == expected


def test_an_interrupt_at_every_line_leaves_no_descriptor(runtime: aspen_mp.Runtime) -> None:
    """Memory that a client asks for comes as a descriptor, which something must own from its arrival on."""
    session = runtime._link.session()
    session.status()
    before = set(os.listdir("/proc/self/fd"))
    for last in itertools.count(1):
        lines = 0

        def trace(frame: FrameType, event: str, _: Any, last: int = last) -> Any:
            nonlocal lines
            if not frame.f_code.co_filename.endswith(("wire/calls.py", "wire/client.py", "client/session.py", "shm/segments.py")):
                return None
            # Where a lock is held, Python handles no signal in lines that only begin or end a block.
            words = linecache.getline(frame.f_code.co_filename, frame.f_lineno).split()
            lines += event == "line" and words[0] not in {"with", "try:", "finally:", "except"}
            if lines == last:
                raise Interrupted
            return trace

        sys.settrace(trace)
        try:
            index, segment = session.make_data(1 << 16)
        except Interrupted:
            continue
        finally:
            sys.settrace(None)
            session.status()  # an answer that nobody waits for has come before this one
        segment.close()
        session._drop_data(index)
        break
    assert last > 10
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before


def all_ends(runtime: aspen_mp.Runtime) -> None:
    session = runtime._link.session()
    deadline = time.monotonic() + WATCHDOG_S
    while session.channel.in_flight or session.queue:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_interrupts_while_requests_are_submitted(runtime: aspen_mp.Runtime) -> None:
    """Whether a request was on its way when Ctrl-C came or not: its memory is given back once, and not before it has ended."""
    model = runtime.load(small_models.conv_chain(2, 32, 16))
    xs = [{"x": np.full((1, 32, 16, 16), k, np.float32)} for k in range(3)]
    many = [model.submit(xs[n % 3]) for n in range(64)]  # which have made room for those to come
    expected = [future.result(WATCHDOG_S)["y"].tobytes() for future in many][:3]
    rng = np.random.default_rng(0)
    interrupted, armed = 0, False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:  # another thread may be given the signal, and be so late to say so that its request has been submitted long since
            armed = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    flying: list[tuple[int, aspen_mp.RequestFuture]] = []
    try:
        for n in range(4000):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-6, 1.5e-4)))
                future = model.submit(xs[n % 3])
                armed = False
                flying.append((n % 3, future))
            except Interrupted:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if len(flying) > 3:
                k, future = flying.pop(0)
                assert future.result(WATCHDOG_S)["y"].tobytes() == expected[k], n
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 100
    assert all(future.result(WATCHDOG_S)["y"].tobytes() == expected[k] for k, future in flying)
    all_ends(runtime)
    assert [model.run(x)["y"].tobytes() for x in xs] == expected
