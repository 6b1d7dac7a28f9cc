"""Inputs that are read where they are: `Model.input_buffers`, and arrays in shared memory of the caller's own."""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.resource_tracker import ensure_running
from multiprocessing.shared_memory import SharedMemory
from types import SimpleNamespace

import guests
import numpy as np
import onnx
import pytest
import small_models
from process_tools import kill_worker

from aspen_mp.client.requests import zero_copy
from aspen_mp.control.memory.clients import ClientMemory
from aspen_mp.control.wire import protocol
from aspen_mp.errors import RequestError, ResourceLimitError
from aspen_mp.shm.bindings import _channel, _control
from aspen_mp.shm.segments import Segment

WATCHDOG_S = 60.0
ROWS = 1 << 15
"""Rows of 16 floats: 2 MiB."""
PAGE = mmap.PAGESIZE


@pytest.fixture(scope="module", autouse=True)
def resource_tracker() -> None:
    """Python's own process, which the first `SharedMemory` starts and which stays."""
    ensure_running()


@pytest.fixture(scope="module")
def mlp(shared_runtime):
    return shared_runtime.load(small_models.mlp("n", width=16))


@pytest.fixture(scope="module")
def two(shared_runtime):
    return shared_runtime.load(small_models.two_inputs())


@pytest.fixture(scope="module")
def staged(shared_runtime):
    return shared_runtime.load(small_models.nonzero())


def rows(seed: int, n: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 16), dtype=np.float32)


def moved(model, act):
    """(copied, in place): bytes of inputs in `act`."""
    before = model.transfers
    act()
    after = model.transfers
    return after.copied_bytes - before.copied_bytes, after.in_place_bytes - before.in_place_bytes


def given(model, x):
    """`moved` of one request with `x`."""
    return moved(model, lambda: model.run({"x": x}))


class Shared:
    """An array in a `SharedMemory` of its own."""

    def __init__(self, value: np.ndarray, offset: int = 0) -> None:
        self.memory = SharedMemory(create=True, size=value.nbytes + offset)
        self.array = np.ndarray(value.shape, value.dtype, self.memory.buf, offset)
        self.array[...] = value

    def __enter__(self) -> np.ndarray:
        return self.array

    def __exit__(self, *_) -> None:
        del self.array
        gc.collect()
        self.memory.close()
        self.memory.unlink()


def borrowed(runtime) -> int:
    return sum(client["borrowed_bytes"] for client in runtime.status()["clients"])


@pytest.fixture(autouse=True)
def nothing_stays_borrowed(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test has lent to the shared runtime is back before the next one counts: a thread of the client returns it."""
    yield
    if "shared_runtime" in request.fixturenames:
        runtime = request.getfixturevalue("shared_runtime")
        assert until(lambda: gc.collect() >= 0 and borrowed(runtime) == 0)


def until(condition) -> bool:
    deadline = time.monotonic() + WATCHDOG_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def until_lost(session) -> None:
    assert until(lambda: session.lost)


# ---- buffers


@pytest.mark.parametrize("n", [3, ROWS])
def test_buffers_are_read_in_place(mlp, n):
    with mlp.input_buffers({"x": (n, 16)}) as buffers:
        assert list(buffers) == ["x"]
        assert (buffers["x"].shape, buffers["x"].dtype) == ((n, 16), np.float32)
        for seed, give in enumerate(
            (
                lambda: mlp.run(buffers),
                lambda: mlp.run({"x": buffers["x"]}),
                lambda: mlp.submit(buffers).result(),
                lambda: next(mlp.map([buffers["x"]])),
            )
        ):
            x = rows(seed, n)
            expected = mlp.run({"x": x})["y"].tobytes()
            buffers["x"][...] = x
            found = []
            assert moved(mlp, lambda give=give, found=found: found.append(give()["y"])) == (0, x.nbytes)
            assert found[0].tobytes() == expected
            assert buffers["x"].tobytes() == x.tobytes()
            assert not buffers.in_flight


def test_results_stay_when_buffers_are_used_again(mlp):
    """Also large ones, which other requests lend."""
    buffers = mlp.input_buffers({"x": (1 << 18, 16)})
    buffers["x"][...] = rows(0, 1 << 18)
    first = mlp.run(buffers)["y"]
    kept = first.tobytes()
    buffers["x"][...] = 0
    mlp.run(buffers)
    assert first.tobytes() == kept


def test_nothing_is_copied_at_all(mlp):
    buffers = mlp.input_buffers({"x": (5, 16)})
    buffers["x"][...] = rows(1, 5)
    expected = mlp.run({"x": rows(1, 5)})["y"].tobytes()
    assert mlp.run(buffers, outputs=[]) == {}
    assert buffers.outputs["y"].tobytes() == expected


def test_a_buffer_belongs_to_one_request_at_a_time(runtime):
    model = runtime.load(small_models.mlp("n", width=16))
    buffers = model.input_buffers({"x": (4, 16)})
    buffers["x"][...] = rows(2, 4)
    expected = model.run(buffers)["y"].tobytes()
    runtime.scale(0)
    first = model.submit(buffers)
    assert buffers.in_flight
    copied, in_place = moved(model, lambda: model.submit(buffers))
    assert (copied, in_place) == (256, 0)
    first.cancel()
    second = model.submit({"x": buffers["x"]})
    runtime.scale(1)
    assert second.result(WATCHDOG_S)["y"].tobytes() == expected
    assert until(lambda: not buffers.in_flight)
    assert moved(model, lambda: model.run(buffers)) == (0, 256)


def test_buffers_for_other_shapes_and_models_are_copied(mlp, two):
    buffers = mlp.input_buffers({"x": (8, 16)})
    buffers["x"][...] = rows(3, 8)
    part = buffers["x"][:4]
    assert given(mlp, part) == (part.nbytes, 0)
    flipped = buffers["x"][::-1]
    assert given(mlp, flipped) == (flipped.nbytes, 0)
    both = two.input_buffers({"a": (2, 3)})
    both["a"][...], both["b"][...] = 1, 2
    assert moved(two, lambda: two.run(both)) == (0, 36)
    other = np.full(3, 5, np.float32)
    assert two.run({"a": both["a"], "b": other})["sum"].tolist() == [[6, 6, 6]] * 2
    assert both["b"].tolist() == [5, 5, 5]  # inputs that are copied go to the same region


def test_a_pipeline_over_a_ring_of_buffers(mlp):
    items = [rows(k, 64) for k in range(30)]
    expected = [mlp.run({"x": x})["y"].tobytes() for x in items]
    ring = [mlp.input_buffers({"x": (64, 16)}) for _ in range(3)]

    def fill():
        for x, buffers in zip(items, itertools.cycle(ring), strict=False):
            assert not buffers.in_flight
            buffers["x"][...] = x
            yield buffers

    found = []
    assert moved(mlp, lambda: found.extend(mlp.map(fill(), concurrency=3))) == (0, 30 * 64 * 64)
    assert [y["y"].tobytes() for y in found] == expected


def test_memory_goes_back_with_the_last_array(mlp, shared_runtime):
    def data() -> int:
        return sum(client["data_bytes"] for client in shared_runtime.status()["clients"])

    def take() -> int:
        with mlp.input_buffers({"x": (ROWS, 16)}) as buffers:
            return zero_copy.address(buffers["x"])

    at, before = take(), data()
    assert {take() for _ in range(8)} == {at}
    assert data() == before
    kept = mlp.input_buffers({"x": (ROWS, 16)})["x"]  # the array alone keeps it
    kept[...] = 7
    assert take() != at
    assert (kept == 7).all()
    assert given(mlp, kept) == (0, kept.nbytes)


def test_forked_children_fill_buffers(mlp):
    buffers = mlp.input_buffers({"x": (6, 16)})
    pid = os.fork()
    if pid == 0:
        buffers["x"][...] = rows(4, 6)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert moved(mlp, lambda: mlp.run(buffers)) == (0, 384)
    assert mlp.run(buffers)["y"].tobytes() == mlp.run({"x": rows(4, 6)})["y"].tobytes()
    at = zero_copy.address(buffers["x"])
    buffers.close()
    assert zero_copy.address(mlp.input_buffers({"x": (6, 16)})["x"]) != at  # the child might still write there


def test_what_has_no_buffers(mlp, shared_runtime, staged):
    with pytest.raises(RequestError, match="no shape is given"):
        mlp.input_buffers()
    with pytest.raises(RequestError, match="no input 'z'"):
        mlp.input_buffers({"x": (1, 16), "z": (1,)})
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(mlp.input_buffers({"x": (1, 16)}))
    buffers = staged.input_buffers({"x": (6,)})  # of the first of several stages
    buffers["x"][...] = [0, 1, 0, 2, 0, 3]
    assert staged.run(buffers)["y"].tolist() == [2, 4, 6]
    assert staged.submit(buffers).result(WATCHDOG_S)["y"].tolist() == [2, 4, 6]


def test_buffers_of_nothing(mlp):
    empty = mlp.input_buffers({"x": (0, 16)})
    assert {name: array.shape for name, array in empty.items()} == {"x": (0, 16)}
    assert (len(empty), empty.nbytes) == (1, 0)
    for y in (mlp.run(empty), mlp.submit(empty).result(WATCHDOG_S)):
        assert y["y"].shape == (0, 8)


def test_buffers_need_a_plan_that_shapes_decide(runtime):
    model = runtime.load(small_models.reshape_by_input())
    with pytest.raises(RequestError, match="values of its inputs decide"):
        model.input_buffers({"x": (6,)})


def test_buffers_outlive_the_runtime_that_was_lost():
    import aspen_mp

    with aspen_mp.Runtime(workers=1, retry=True) as runtime:
        model = runtime.load(small_models.mlp("n", width=16))
        buffers = model.input_buffers({"x": (4, 16)})
        buffers["x"][...] = rows(5, 4)
        expected = model.run(buffers)["y"].tobytes()
        session = model._tree.session
        os.kill(runtime.pid, signal.SIGKILL)
        until_lost(session)
        del session
        assert model.run(buffers)["y"].tobytes() == expected
        assert model.transfers.copied_bytes == 256
        with model.input_buffers({"x": (4, 16)}) as fresh:
            assert moved(model, lambda: model.run(fresh)) == (0, 256)


# ---- shared memory of the caller's own


def test_shared_memory_is_read_in_place(mlp, shared_runtime):
    x = rows(0)
    expected = mlp.run({"x": x})["y"].tobytes()
    with Shared(x) as shared:
        for k in range(3):
            shared[...] = x
            assert given(mlp, shared) == (0, x.nbytes)
            assert mlp.run({"x": shared})["y"].tobytes() == expected
            shared[k] = 0  # workers see what is there now
            assert mlp.run({"x": shared})["y"].tobytes() != expected
        assert borrowed(shared_runtime) == x.nbytes  # one loan for all of them
    with pytest.raises(RequestError, match="closed"):
        mlp.run({"x": shared})  # numpy would read memory that is gone
    del shared
    assert until(lambda: borrowed(shared_runtime) == 0)


def test_submit_copies_unless_told_otherwise(mlp):
    with Shared(rows(0)) as shared:
        assert moved(mlp, lambda: mlp.submit({"x": shared}).result(WATCHDOG_S)) == (shared.nbytes, 0)
        assert moved(mlp, lambda: mlp.submit({"x": shared}, copy=False).result(WATCHDOG_S)) == (0, shared.nbytes)
        assert moved(mlp, lambda: list(mlp.map([shared] * 2))) == (2 * shared.nbytes, 0)
        assert moved(mlp, lambda: list(mlp.map([shared] * 2, copy=False, concurrency=1))) == (0, 2 * shared.nbytes)


def test_several_requests_on_the_same_array(mlp):
    x = rows(1)
    expected = mlp.run({"x": x})["y"].tobytes()
    with Shared(x) as shared:
        futures = [mlp.submit({"x": shared}, copy=False) for _ in range(8)]
        assert {future.result(WATCHDOG_S)["y"].tobytes() for future in futures} == {expected}
        del futures


def test_a_ring_in_one_segment(mlp):
    memory = SharedMemory(create=True, size=4 * ROWS * 64 + 64)
    parts = [np.ndarray((ROWS, 16), np.float32, memory.buf, k * ROWS * 64) for k in range(4)]
    for k, part in enumerate(parts):
        part[...] = rows(k)
        assert given(mlp, part) == (0, part.nbytes)
        assert mlp.run({"x": part})["y"].tobytes() == mlp.run({"x": rows(k)})["y"].tobytes()
    askew = np.ndarray((ROWS, 16), np.float32, memory.buf, 64)
    copy = np.array(askew)
    assert given(mlp, askew) == (askew.nbytes, 0)  # pages of it cannot stand in for others
    assert mlp.run({"x": askew})["y"].tobytes() == mlp.run({"x": copy})["y"].tobytes()
    del parts, part, askew
    memory.close()
    memory.unlink()


def test_a_tail_of_a_page(mlp):
    """The array ends in the middle of a page and of the file."""
    x = rows(2, ROWS + 3)
    with Shared(x) as shared:
        assert given(mlp, shared) == (0, x.nbytes)
        assert mlp.run({"x": shared})["y"].tobytes() == mlp.run({"x": x})["y"].tobytes()


def test_other_kinds_of_memory(mlp):
    x = rows(3)
    fd = os.memfd_create("user")
    os.ftruncate(fd, x.nbytes)
    mapped = mmap.mmap(fd, x.nbytes)
    os.close(fd)
    array = np.frombuffer(mapped, np.float32).reshape(x.shape)
    array[...] = x
    assert given(mlp, array) == (0, x.nbytes)
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="aspen-test-") as file:
        memmap = np.memmap(file.name, np.float32, "w+", shape=x.shape)
        memmap[...] = x
        assert given(mlp, memmap) == (0, x.nbytes)
        private = np.memmap(file.name, np.float32, "c", shape=x.shape)
        private[0] = 1  # seen by this process alone
        expected = mlp.run({"x": np.array(private)})["y"].tobytes()
        assert given(mlp, private) == (x.nbytes, 0)
        assert mlp.run({"x": private})["y"].tobytes() == expected
        del memmap, private
    anonymous = np.frombuffer(mmap.mmap(-1, x.nbytes), np.float32).reshape(x.shape)
    anonymous[...] = x
    mlp.run({"x": anonymous})
    with tempfile.TemporaryFile(dir=os.getcwd()) as file:
        file.truncate(x.nbytes)
        on_disk = np.frombuffer(mmap.mmap(file.fileno(), x.nbytes), np.float32).reshape(x.shape)
        if not zero_copy.is_memory(file.fileno()):
            assert given(mlp, on_disk) == (x.nbytes, 0)
        del on_disk
    small = np.frombuffer(mapped, np.float32, 64 * 16).reshape(64, 16)
    assert given(mlp, small) == (small.nbytes, 0)
    del array, small, anonymous
    gc.collect()
    mapped.close()


def test_more_arrays_than_loans(mlp, shared_runtime):
    memory = SharedMemory(create=True, size=(zero_copy.MAX_LOANS + 8) * PAGE + ROWS * 64)
    for k in range(zero_copy.MAX_LOANS + 8):
        part = np.ndarray((ROWS, 16), np.float32, memory.buf, k * PAGE)
        assert given(mlp, part) == (0, part.nbytes)
    assert borrowed(shared_runtime) == zero_copy.MAX_LOANS * ROWS * 64
    del part
    memory.close()
    memory.unlink()
    assert until(lambda: borrowed(shared_runtime) == 0)


def test_workers_that_join_and_die_have_it_too(runtime):
    model = runtime.load(small_models.mlp("n", width=16))
    x = rows(4)
    expected = model.run({"x": x})["y"].tobytes()
    with Shared(x) as shared:
        model.run({"x": shared})
        for n in (1, 3, 0, 2):
            runtime.scale(n)
            if n:
                assert model.run({"x": shared}, timeout=WATCHDOG_S)["y"].tobytes() == expected
        for worker in runtime.workers:
            with suppress(ProcessLookupError):  # one that was leaving
                os.kill(worker["pid"], 9)
        assert model.run({"x": shared}, timeout=WATCHDOG_S)["y"].tobytes() == expected
        assert model.transfers.copied_bytes == x.nbytes
    model.unload()


def test_memory_that_is_cut_short_before(mlp):
    with Shared(rows(5)) as shared:
        mlp.run({"x": shared})
        fd = os.open(f"/proc/self/fd/{zero_copy.place(shared)[0].fd}", os.O_RDWR)
        os.ftruncate(fd, PAGE)
        with pytest.raises(RequestError, match="fewer than its array"):
            mlp.run({"x": shared})
        os.ftruncate(fd, shared.nbytes)
        os.close(fd)


def test_memory_that_is_cut_short_while_it_is_read(runtime):
    """It costs that request, and nobody else anything: no worker dies."""
    model = runtime.load(small_models.mlp("n", width=16))
    other = runtime.load(small_models.conv_chain(6, 32, 32))
    image = {"x": np.ones((1, 32, 32, 32), np.float32)}
    undisturbed = other.run(image)["y"].tobytes()
    ended = threading.Event()
    wrong = []

    def bystander() -> None:
        while not ended.is_set():
            if other.run(image)["y"].tobytes() != undisturbed:
                wrong.append(1)

    thread = threading.Thread(target=bystander)
    thread.start()
    x = rows(6)
    expected = model.run({"x": x})["y"].tobytes()
    for _ in range(3):
        with Shared(x) as shared:
            assert model.run({"x": shared})["y"].tobytes() == expected
            fd = os.open(f"/proc/self/fd/{zero_copy.place(shared)[0].fd}", os.O_RDWR)
            runtime.scale(0)
            future = model.submit({"x": shared}, copy=False)
            os.ftruncate(fd, PAGE)
            runtime.scale(2)
            with pytest.raises(RequestError, match="truncated"):
                future.result(WATCHDOG_S)
            os.ftruncate(fd, shared.nbytes)
            os.close(fd)
            shared[...] = x
            assert model.run({"x": shared})["y"].tobytes() == expected  # a loan of its own
    ended.set()
    thread.join(WATCHDOG_S)
    assert not wrong
    assert runtime.status()["recovery"]["worker_deaths"] == 0


def test_what_missing_memory_leads_to_is_not_told_as_an_error_of_the_model(runtime):
    """Zeros are read in place of missing pages, and divided by."""
    n = 1 << 18
    value = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Div", ["i", "j"], ["k"])]
    values = [value(name, onnx.TensorProto.INT64, [n]) for name in "ijk"]
    graph = onnx.helper.make_graph(nodes, "divide", values[:2], values[2:])
    model = runtime.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9))
    i, j = np.full(n, 7), np.full(n, 2)
    with Shared(j) as shared:
        assert (model.run({"i": i, "j": shared})["k"] == 3).all()
        shared[-1] = 0
        with pytest.raises(RequestError, match="division by zero"):
            model.run({"i": i, "j": shared})
        shared[-1] = 2
        fd = os.open(f"/proc/self/fd/{zero_copy.place(shared)[0].fd}", os.O_RDWR)
        for use in ("run", "submit"):
            runtime.scale(0)
            assert until(lambda: not runtime.workers)  # one that is about to leave may still take a request
            if use == "run":
                with ThreadPoolExecutor(1) as pool:
                    future = pool.submit(model.run, {"i": i, "j": shared})
                    assert until(lambda: runtime.status()["scheduler"]["waiting"])
                    os.ftruncate(fd, PAGE)
                    runtime.scale(2)
            else:
                future = model.submit({"i": i, "j": shared}, copy=False)
                os.ftruncate(fd, PAGE)
                runtime.scale(2)
            with pytest.raises(RequestError, match="truncated"):
                future.result(WATCHDOG_S)
            os.ftruncate(fd, shared.nbytes)
            shared[...] = 2
            assert (model.run({"i": i, "j": shared})["k"] == 3).all()
        os.close(fd)


def test_a_torn_loan_is_not_used_again():
    """Whoever gives it back: also a request whose answer nobody looked at."""
    segment = Segment.create("data", 2 * PAGE, memfd=True)
    dropped = []
    loans = zero_copy.Loans(lambda nbytes, pieces, fds: (3, segment), dropped.append)
    loan = loans.take(1, PAGE, [])
    loans.give(loan)
    assert loans.take(1, PAGE, []) is loan
    segment.buf[32] = 1  # as a worker marks it
    assert loan.torn
    loans.give(loan)
    assert until(lambda: dropped == [3])
    assert not loan.torn  # closed: nobody knows any more


def test_a_descriptor_that_is_another_file_s_by_now(mlp, monkeypatch):
    """A number in /proc/self/fd may be closed and given away before it is duplicated."""
    with Shared(rows(11)) as shared:
        other, asked = os.memfd_create("other"), []
        with monkeypatch.context() as patch:
            patch.setattr("aspen_mp.system.descriptors.fcntl", lambda fd, what, least: os.dup(other))
            assert zero_copy.place(shared) is None
    with Shared(rows(11)) as shared, monkeypatch.context() as patch:  # nothing is asked of the number, but of what was duplicated from it
        before = {fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
        patch.setattr(zero_copy, "is_memory", lambda fd: asked.append(str(fd)) or True)
        assert zero_copy.place(shared) is not None
        assert asked
        assert not before & set(asked)
    os.close(other)


def test_forked_children_have_loans_of_their_own(mlp):
    with Shared(rows(7)) as shared:
        expected = mlp.run({"x": shared})["y"].tobytes()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = not (given(mlp, shared) == (0, shared.nbytes) and mlp.run({"x": shared})["y"].tobytes() == expected)
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert mlp.run({"x": shared})["y"].tobytes() == expected


def test_threads_share_loans(mlp):
    x = rows(8)
    expected = mlp.run({"x": x})["y"].tobytes()
    with Shared(x) as shared:
        found: list[bytes] = []

        def go() -> None:
            for _ in range(10):
                found.append(mlp.run({"x": shared})["y"].tobytes())  # noqa: PERF401

        threads = [threading.Thread(target=go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WATCHDOG_S)
        assert len(found) == 40
        assert set(found) == {expected}


# ---- clients that do not keep to the rules


def test_outputs_on_borrowed_pages(runtime):
    """A slot's offset puts a plan's outputs on pages that workers have mapped read-only: no worker dies, and the segment is marked."""
    model = runtime.load(small_models.mlp("n", width=16))
    expected = model.run({"x": rows(9)})["y"].tobytes()
    pids = {worker["pid"] for worker in runtime.workers}
    with guests.Guest(runtime._link.address) as guest:
        loaded = guest.ask("Adopt", 1, model._tree._model_id)
        assert isinstance(loaded, protocol.Loaded)
        planned = guest.ask("MakePlan", 2, loaded.model, [[["x", "float32", [ROWS, 16], None]]], [])
        assert isinstance(planned, protocol.Planned)
        nbytes = -(-planned.region // PAGE) * PAGE
        memory = os.memfd_create("guest")
        os.ftruncate(memory, nbytes)
        known = len(guest.fds)
        ready = guest.ask("Borrow", 3, PAGE + nbytes, [[PAGE, 0, nbytes]], fds=[memory])
        assert isinstance(ready, protocol.DataReady)
        own, bell, data = (mmap.mmap(fd, os.fstat(fd).st_size) for fd in (*guest.fds[:2], guest.fds[known]))
        channel = _channel.ClientChannel(own, bell)
        for k in range(3):
            ticket = channel.submit(planned.plan, planned.generation, ready.index, PAGE)
            assert channel.wait(ticket, WATCHDOG_S) is not None
            channel.release(ticket)
            assert _control.torn(data)
            assert os.pread(memory, nbytes, 0) == bytes(nbytes), "workers wrote to a client's file"
            assert model.run({"x": rows(9)})["y"].tobytes() == expected, k
        del channel
        os.close(memory)
    assert {worker["pid"] for worker in runtime.workers} == pids
    assert runtime.status()["recovery"]["worker_deaths"] == 0


def test_signals_still_end_a_worker_that_borrows(runtime):
    """A fault that somebody else sends is no fault of the borrowed pages, and is not swallowed."""
    model = runtime.load(small_models.mlp("n", width=16))
    with Shared(rows(10)) as shared:
        for k, number in enumerate((signal.SIGBUS, signal.SIGSEGV), 1):
            expected = model.run({"x": shared}, timeout=WATCHDOG_S)["y"].tobytes()
            kill_worker(runtime, number)
            assert until(lambda k=k: runtime.status()["recovery"]["worker_deaths"] == k)
            assert model.run({"x": shared}, timeout=WATCHDOG_S)["y"].tobytes() == expected


def test_address_space_is_not_endless(shared_runtime):
    """What segments with borrowed pages may take together, those on their way included."""
    nbytes, own = 3 << 42, 20 << 20
    memory = os.memfd_create("sparse")
    os.ftruncate(memory, nbytes)
    piece = [PAGE, 0, nbytes - own]
    with guests.Guest(shared_runtime._link.address) as guest:
        failed = guest.ask("Borrow", 1, 2 * nbytes, [piece], fds=[memory])
        assert (failed.id, failed.error) == (1, "ResourceLimitError"), failed
        guest.send(guests.packed(["Borrow", 2, nbytes, [piece]], 1), [memory])  # a process reserves for it
        guest.send(guests.packed(["Borrow", 3, nbytes, [piece]], 1), [memory])
        answers = {answer.id: answer for answer in (guest.answer(), guest.answer())}
        assert isinstance(answers[2], protocol.DataReady), answers
        assert answers[3].error == "ResourceLimitError", answers
        assert "16.0 TiB" in answers[3].text
        assert isinstance(guest.ask("DropData", 4, answers[2].index), protocol.Done)
        again = guest.ask("Borrow", 5, nbytes, [piece], fds=[memory])
        assert isinstance(again, protocol.DataReady), again
    os.close(memory)


def test_pieces_that_are_on_their_way_count():
    """From the moment on that they are asked for until they are there, or cannot be had."""
    waiting = []
    reserver = SimpleNamespace(reserve=lambda role, nbytes, ready, holes: waiting.append(ready))
    segments = SimpleNamespace(pieces=_control.MAX_BORROWED - 3, borrowing_bytes=0)
    resources = SimpleNamespace(table=None, segments=segments, reserver=reserver)
    clients = {}
    asked = ClientMemory(resources, None, clients, publish=None, collect=None, relieve=lambda _: False)
    failed = []
    connection = type("Connected", (), {"fail": staticmethod(lambda *what: failed.append(what))})()
    client = SimpleNamespace(connection=connection)
    memory = os.memfd_create("guest")
    os.ftruncate(memory, PAGE)

    def ask():
        fd = os.dup(memory)
        try:
            asked.borrow(client, protocol.Borrow(1, 2 * PAGE, [protocol.Piece(PAGE, 0, PAGE)]), fds := [fd])
        finally:
            protocol.close_all(fds)

    for _ in range(3):
        ask()
    for n in (1, 2):
        with pytest.raises(ResourceLimitError, match="pieces of clients' memory mapped"):
            ask()
        waiting.pop()(ResourceLimitError("no memory"))
        assert len(failed) == n
        ask()
    for ready in waiting:
        ready(ResourceLimitError("no memory"))
    assert (asked._coming_pieces, asked._coming_bytes) == (0, 0)
    os.close(memory)


def test_pieces_that_are_refused(shared_runtime):
    """Each by an error, and the connection goes on."""
    memory = os.memfd_create("guest")
    os.ftruncate(memory, 8 * PAGE)
    disk = os.open(os.getcwd(), os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(disk, 8 * PAGE)
    read, write = os.pipe()
    path_only = os.open(f"/proc/self/fd/{memory}", os.O_PATH)
    write_only = os.open(f"/proc/self/fd/{memory}", os.O_WRONLY)
    folder = os.open("/dev/shm", os.O_RDONLY)
    good = [PAGE, 0, 4 * PAGE]
    cases = [
        ([[PAGE + 64, 0, PAGE]], [memory]),
        ([[PAGE, 64, PAGE]], [memory]),
        ([[PAGE, 0, 100]], [memory]),
        ([[PAGE, 0, 0]], [memory]),
        ([[0, 0, PAGE]], [memory]),
        ([[16 * PAGE, 0, PAGE]], [memory]),
        ([[PAGE, 8 * PAGE, PAGE]], [memory]),
        ([[PAGE, 0, 9 * PAGE]], [memory]),
        ([[PAGE, 1 << 61, PAGE]], [memory]),
        ([[1 << 61, 0, PAGE]], [memory]),
        ([good, [2 * PAGE, 0, PAGE]], [memory, memory]),
        ([[5 * PAGE, 0, PAGE], good], [memory, memory]),
        ([good], [read]),
        ([good], [write]),
        ([good], [folder]),
        ([good], [path_only]),
        ([good], [write_only]),
    ]
    if not zero_copy.is_memory(disk):
        cases.append(([good], [disk]))
    with guests.Guest(shared_runtime._link.address) as guest:
        for number, (pieces, fds) in enumerate(cases, 1):
            failed = guest.ask("Borrow", number, 12 * PAGE, pieces, fds=fds)
            assert isinstance(failed, protocol.Failed), (pieces, failed)
            assert failed.error == "RequestError", (pieces, failed)
        ready = guest.ask("Borrow", 99, 12 * PAGE, [good], fds=[memory])
        assert isinstance(ready, protocol.DataReady)
    with guests.Guest(shared_runtime._link.address) as guest:
        refused = guest.ask("Borrow", 1, 12 * PAGE, [good, good], fds=[memory])
        assert refused.error == "ProtocolError"
    for fd in (memory, disk, read, write, path_only, write_only, folder):
        os.close(fd)
    assert _control.PAGE == 4096
