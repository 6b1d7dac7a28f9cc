"""Streams while workers die, come and go, and frames are cancelled: each frame that ends well has the bits of a whole run.

A frame that fails leaves a region that nobody may count on, and so does a worker that dies of a fault. A failing case names its seed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError

import folders
import numpy as np
import pytest
import small_models
from process_tools import WATCHDOG_S, kill_worker, wait_until, without_workers
from streamed_nets import Array, Whole, bits, drawn, next_frame

import aspen_mp
from aspen_mp.errors import DeadlineMissed, RequestError, RequestTimeout

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
SECONDS = 240.0 if LONG else 6.0
WORKERS = 3
NO_DIFFERENCE = 1e-30
"""A share of an activation's range that is less than any difference."""
GIVEN_UP = (RequestTimeout, DeadlineMissed, CancelledError)
FRAME = (1, 64, 64, 64)
Boxes = list[tuple[list[int], list[int]]]


def image(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(FRAME).astype(np.float32)


def with_rows(x: Array, first: int, value: float) -> tuple[Array, Boxes]:
    """The image with three other rows, and the box that holds them."""
    y = x.copy()
    y[:, :, first : first + 3] = value
    return y, [([0, 0, first, 0], [1, 64, first + 3, 64])]


def chain(runtime: aspen_mp.Runtime, layers: int = 6) -> aspen_mp.Model:
    return runtime.load(small_models.conv_chain(layers, 64, 64))


@contextlib.contextmanager
def storm(runtime: aspen_mp.Runtime, seed: int) -> Iterator[None]:
    """Workers are killed about 400 times a minute, and come and go."""
    rng, stop = np.random.default_rng(seed), threading.Event()

    def rage() -> None:
        while not stop.wait(rng.exponential(0.15)):
            if rng.random() < 0.2:
                runtime.scale(int(rng.integers(1, WORKERS + 1)))
                continue
            number = signal.Signals(int(rng.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP], p=[0.55, 0.35, 0.1])))
            victims = [worker["pid"] for worker in runtime.workers if worker["pid"]]
            for pid in rng.permutation(victims)[: 1 if rng.random() < 0.8 else None]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), number)

    thread = threading.Thread(target=rage)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(WATCHDOG_S)


def given_up(stream: aspen_mp.ModelStream, x: Array, changed: object, rng: np.random.Generator) -> dict[str, Array] | None:
    """A frame that may end without a result: cancelled, timed out or late, before it begins or in the middle."""
    match rng.integers(0, 4):
        case 0:
            future = stream.submit({"x": x}, changed)
            time.sleep(rng.random() * 0.002)
            future.cancel()
            return future.result(WATCHDOG_S)
        case 1:
            return stream.run({"x": x}, changed, timeout=rng.random() * 0.002)
        case 2:
            return stream.run({"x": x}, changed, deadline_ms=0.05 + rng.random())
        case _:
            future = stream.submit({"x": x}, changed, timeout=rng.random() * 0.002)
            return future.result(WATCHDOG_S)


def check(runtime: aspen_mp.Runtime, seed: int) -> int:
    """Frames of one network. Returns how many were compared."""
    rng, compared = np.random.default_rng(seed), 0
    net = drawn(rng)
    loaded = runtime.load(net.model())
    whole = Whole(loaded)
    with loaded.stream() as stream, loaded.stream(layer_tol=NO_DIFFERENCE) as near:
        x, changed = rng.standard_normal(net.shape).astype(np.float32), None
        for frame in range(12):
            got = None
            if rng.random() < 0.25:
                with contextlib.suppress(*GIVEN_UP):
                    got = given_up(stream, x, changed, rng)
            else:
                got = stream.run({"x": x}, changed)
            if got is not None:
                assert bits(got) == whole(x), f"seed {seed}, frame {frame}"
                compared += 1
                for name, value in near.run({"x": x}).items():
                    far = np.abs(value - got[name]).max()
                    assert far <= 1e-4 * np.ptp(got[name]) + 1e-6, f"seed {seed}, frame {frame}, {name}: too far"
            x, changed = next_frame(rng, x)
    whole.close()
    loaded.unload()
    return compared


def test_frames_while_workers_die() -> None:
    """Kills at random moments, of all kinds, under random networks and frames."""
    began, seed, compared = time.monotonic(), 0, 0
    with aspen_mp.Runtime(workers=WORKERS, log="off") as runtime, storm(runtime, 1):
        while time.monotonic() - began < SECONDS:
            compared += check(runtime, seed)
            seed += 1
        deaths = runtime.status()["recovery"]["worker_deaths"]
    print(f"{seed} networks, {compared} frames, {deaths} deaths")
    assert compared
    assert deaths >= SECONDS * 40 / 60


def test_a_fault_between_frames() -> None:
    """A worker may have written anywhere before it died: into inputs, outputs and activations of a stream at rest. Neither a frame that is
    like the one before nor one with a small change counts on them."""
    with aspen_mp.Runtime(workers=2, log="off") as runtime:
        model = chain(runtime)
        whole = Whole(model)
        x = image(0)
        want = whole(x)
        with model.stream() as stream:
            for told in ([], None, "rows"):
                assert bits(stream.run({"x": x})) == want
                assert bits(stream.run({"x": x}, [])) == want
                stage, region = stream._stage, stream._region
                assert stage is not None
                assert region is not None
                faults = stage.faults()
                kill_worker(runtime, signal.SIGSEGV)
                wait_until(lambda at=stage, before=faults: at.faults() > before, "the recovery")
                for view in (*region.inputs[:-1], *region.outputs):  # what that worker wrote
                    view[...] = 7
                changed: object = told
                if told == "rows":
                    x, changed = with_rows(x, 20, 3.0)
                    want = whole(x)
                assert bits(stream.run({"x": x}, changed)) == want, told
        whole.close()


@pytest.mark.parametrize("queued", [False, True])
def test_changes_since_a_frame_that_was_given_up(queued: bool) -> None:
    """The caller names changes since the frame before, of which the region may hold nothing."""
    with aspen_mp.Runtime(workers=2, log="off") as runtime:
        model = chain(runtime)
        whole = Whole(model)
        with model.stream() as stream:
            x = image(0)
            stream.run({"x": x})
            for k in range(4):
                y, changed = with_rows(x, 3 * k, float(k))
                if queued:
                    with without_workers(runtime):
                        first, second = stream.submit({"x": x}), stream.submit({"x": y}, changed)
                        assert second.cancel()
                    first.result(WATCHDOG_S)
                else:
                    with without_workers(runtime), pytest.raises((RequestTimeout, ValueError)):
                        stream.run({"x": y}, changed, **({"timeout": 0.0} if k % 2 else {"deadline_ms": -1.0}))
                x, changed = with_rows(y, 30 + 3 * k, float(k))
                assert bits(stream.run({"x": x}, changed)) == whole(x), k
        whole.close()


def test_close_while_frames_wait_and_run() -> None:
    """The frame that runs ends well; those that wait fail, and say why."""
    with aspen_mp.Runtime(workers=2, log="off") as runtime:
        model = chain(runtime, 24)
        whole = Whole(model)
        x = image(1)
        want = whole(x)
        for k in range(20 if LONG else 3):
            stream = model.stream()
            futures = [stream.submit({"x": x}) for _ in range(4)]
            if k:
                futures[0].result(WATCHDOG_S)
            time.sleep(0.001 * k)
            stream.close()
            for future in futures:
                error = future.exception(WATCHDOG_S)
                assert error is None or (isinstance(error, RequestError) and "is closed" in str(error)), error
                assert error is not None or bits(future.result()) == want
            with pytest.raises(RequestError, match="is closed"):
                stream.run({"x": x})
            stream.close()
            assert stream.nbytes == 0
        whole.close()


def test_the_runtime_is_lost_between_and_in_frames() -> None:
    with aspen_mp.Runtime(workers=2, retry=True, log="off") as runtime:
        model = chain(runtime, 24)
        whole = Whole(model)
        with model.stream() as stream:
            x, changed = image(2), None
            for k in range(6 if LONG else 2):
                assert bits(stream.run({"x": x}, changed)) == whole(x)
                x, changed = with_rows(x, 5 * k, float(k))
                futures = [stream.submit({"x": x}, changed)] if k % 2 else []
                with contextlib.suppress(ProcessLookupError):
                    os.kill(runtime.pid, signal.SIGKILL)
                for future in futures:
                    assert bits(future.result(WATCHDOG_S)) == whole(x)
                    x, changed = with_rows(x, 40, float(k))
        whole.close()


def test_a_fork_with_an_open_stream() -> None:
    """Parent and child go on with memory of their own."""
    with aspen_mp.Runtime(workers=2, log="off") as runtime:
        model = chain(runtime)
        whole = Whole(model)
        x = image(3)
        frames: list[tuple[Array, Boxes | None]] = [(x, None)]
        for k in range(4):
            frames.append(with_rows(frames[-1][0], 9 * k, float(k)))
        wanted = [whole(y) for y, _ in frames]
        with model.stream() as stream:
            assert bits(stream.run({"x": x})) == wanted[0]
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    same = [bits(stream.run({"x": y}, changed)) == want for (y, changed), want in zip(frames[1:], wanted[1:], strict=True)]
                    stream.close()
                    status = 0 if all(same) else 2
                finally:
                    os._exit(status)
            for (y, changed), want in zip(frames[1:], wanted[1:], strict=True):
                assert bits(stream.run({"x": y}, changed)) == want
            assert os.waitpid(pid, 0)[1] == 0
            y, changed = with_rows(frames[-1][0], 50, 9.0)
            assert bits(stream.run({"x": y}, changed)) == whole(y)
        whole.close()


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import folders
import numpy as np, aspen_mp, small_models
runtime = aspen_mp.Runtime(workers=1)
model = runtime.load(small_models.conv_chain(3, 64, 64))
stream = model.stream()
x = np.ones((1, 64, 64, 64), np.float32)
stream.run({"x": x})
future = stream.submit({"x": x + 1})
if sys.argv[2] == "waits":
    future.result()
print("ok", flush=True)
"""


@pytest.mark.parametrize("how", ["waits", "leaves"] if LONG else ["leaves"])
def test_a_stream_that_is_open_at_exit(how: str) -> None:
    """The audit of every test finds segments and processes that are left."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folders.TESTS, how], capture_output=True, text=True, check=False, timeout=WATCHDOG_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
