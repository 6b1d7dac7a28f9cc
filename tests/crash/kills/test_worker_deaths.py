"""A worker that dies costs time, not requests."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path

import guests
import numpy as np
import pytest
import small_models
from process_tools import WATCHDOG_S, chain, feeds, kill_worker, wait_until

import aspen_mp
from aspen_mp.control.wire import protocol
from aspen_mp.errors import DeadlineMissed, PoisonTile


def replaced(runtime, pid):
    """Two run, and not that process: on a busy machine a signal may be delivered when all requests have ended."""
    workers = runtime.workers
    return len(workers) == 2 and all(w["state"] == "running" and w["pid"] != pid for w in workers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_is_killed(number):
    with aspen_mp.Runtime(workers=2) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        for _ in range(5):
            victim = min(w["pid"] for w in runtime.workers)
            futures = [model.submit(feeds()) for _ in range(6)]
            futures[0].result(WATCHDOG_S)
            os.kill(victim, number)
            assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 6
            wait_until(partial(replaced, runtime, victim), "a new worker")
        assert runtime.status()["recovery"]["worker_deaths"] == 5


def test_all_workers_are_killed():
    with aspen_mp.Runtime(workers=2) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        futures = [model.submit(feeds()) for _ in range(6)]
        for worker in runtime.workers:
            os.kill(worker["pid"], signal.SIGKILL)
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 6


def test_kills_while_requests_run():
    """A short storm: random workers, random moments; every request comes back with the same bits."""
    rng = np.random.default_rng(7)
    with aspen_mp.Runtime(workers=3) as runtime:
        model = chain(runtime)
        small = runtime.load(small_models.mlp())
        x = {"x": np.ones((4, 16), np.float32)}
        expected = model.run(feeds())["y"].tobytes(), small.run(x)["y"].tobytes()
        for _ in range(25):
            futures = [(model.submit(feeds()), small.submit(x)) for _ in range(2)]
            victims = [w["pid"] for w in runtime.workers if w["pid"]]
            time.sleep(rng.random() * 0.01)
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(rng.choice(victims)), signal.SIGKILL)
            for big, little in futures:
                got = big.result(WATCHDOG_S)["y"].tobytes(), little.result(WATCHDOG_S)["y"].tobytes()
                assert got == expected
        status = runtime.status()
        assert status["scheduler"]["instances"]["running"] == 0
        assert status["recovery"]["worker_deaths"] >= 20


def test_kills_while_requests_have_deadlines():
    """Marks of admitted requests may be in a dead worker's hand: each request still ends once, with the right bits or DeadlineMissed, and
    those that run on when they are late all come."""
    rng = np.random.default_rng(8)
    with aspen_mp.Runtime(workers=3) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        for _ in range(15):
            asked = [(int(rng.integers(1, 200)), rng.random() < 0.5) for _ in range(8)]
            futures = [model.submit(feeds(), deadline_ms=ms, on_late="run" if runs_on else "drop") for ms, runs_on in asked]
            futures.append(model.submit(feeds()))
            victims = [w["pid"] for w in runtime.workers if w["pid"]]
            time.sleep(rng.random() * 0.01)
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(rng.choice(victims)), signal.SIGKILL)
            for future, (_, runs_on) in zip(futures, [*asked, (0, True)], strict=True):
                error = future.exception(WATCHDOG_S)
                assert error is None or (isinstance(error, DeadlineMissed) and not runs_on), error
                assert error is not None or future.result()["y"].tobytes() == expected
        wait_until(lambda: runtime.status()["scheduler"]["instances"]["running"] == 0, "the last requests to end")
        assert (model.run(feeds(), deadline_ms=1e6)["y"].tobytes()) == expected


def test_a_poison_tile_fails_its_request_alone():
    """A tile whose execution kills its worker each time: PoisonTile, naming the node, and everybody else goes on."""
    with aspen_mp.Runtime(workers=2) as runtime:
        model = runtime.load(small_models.loop())
        other = chain(runtime)
        expected = other.run(feeds())["y"].tobytes()
        poison = {"n": np.array(1_000_000), "limit": np.array(1e9, np.float32)}  # runs until it is met
        harmless = {"n": np.array(10), "limit": np.array(5, np.float32)}
        assert model.run(harmless)["y"] == 5
        future = model.submit(poison)
        deadline = time.monotonic() + WATCHDOG_S
        while not future.done():
            assert time.monotonic() < deadline
            for worker in runtime.workers:
                if worker["current"] is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker["pid"], signal.SIGSEGV)
        with pytest.raises(PoisonTile, match=r"model 'loop': count \(Loop\): every worker that executed it has died"):
            future.result()
        assert runtime.status()["recovery"]["worker_deaths"] >= 3
        assert other.run(feeds())["y"].tobytes() == expected
        assert model.run(harmless)["y"] == 5


def test_large_segments_go_whatever_dies():
    """Workers die while 64 MiB come and go: in the end nobody has any of it, neither open nor mapped."""

    def held(runtime: aspen_mp.Runtime) -> int:
        found = 0
        for pid in (runtime.pid, *(w["pid"] for w in runtime.workers)):
            with contextlib.suppress(OSError):
                found += Path(f"/proc/{pid}/maps").read_text().count("aspen-data")
                found += sum("aspen-data" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
        return found

    with aspen_mp.Runtime(workers=2) as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        before = held(runtime)
        with guests.Guest(runtime._link.address) as guest:
            for k in range(12):
                ready = guest.ask("Data", 2 * k, 64 << 20)
                assert isinstance(ready, protocol.DataReady)
                if k % 3 == 2:
                    kill_worker(runtime)
                assert isinstance(guest.ask("DropData", 2 * k + 1, ready.index), protocol.Done)
                assert model.run(feeds())["y"].tobytes() == expected
            assert isinstance(guest.ask("Data", 100, 64 << 20), protocol.DataReady)
        wait_until(lambda: held(runtime) <= before, "the memory to be given back")
        assert runtime.status()["recovery"]["worker_deaths"] == 4
