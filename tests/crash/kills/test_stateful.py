"""A runtime that anything may happen to, beside a model of what it must do.

Requests, cancellations, workers that join, leave, are killed or stopped, models that are loaded and given back, clients that come, go and
are killed, in any order that hypothesis thinks of.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from concurrent.futures import CancelledError
from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import pytest
import small_models
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from process_tools import WATCHDOG_S, alive, wait_until

import aspen_mp
from aspen_mp.client.future import RequestFuture
from aspen_mp.errors import PoisonTile, RequestCancelled, RequestError, RequestTimeout, ResourceLimitError

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
STEPS = 30
EXAMPLES = 20_000 // STEPS if LONG else 4  # simulated histories have such lives by the thousand
MOST_WORKERS = 4
SIGNALS = [signal.SIGKILL] * 4 + [signal.SIGSEGV, signal.SIGSTOP]

X = {"x": np.random.default_rng(3).standard_normal((1, 32, 24, 24)).astype(np.float32)}
KINDS = [small_models.conv_chain(layers, 32, 24) for layers in (3, 10)]


@dataclass(eq=False)
class Sent:
    """A request; `faults`, `kills`: how many workers had been hit when it was sent; `cancelled`: by us."""

    future: RequestFuture
    expected: bytes
    faults: int
    kills: int
    cancelled: bool = False


@dataclass(eq=False)
class Loaded:
    model: aspen_mp.Model
    expected: bytes


@functools.cache
def undisturbed() -> list[bytes]:
    """Each model's result."""
    with aspen_mp.Runtime(workers=1) as runtime:
        return [runtime.load(kind).run(X)["y"].tobytes() for kind in KINDS]


class RuntimeMachine(RuleBasedStateMachine):
    models = Bundle("models")
    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.runtime = aspen_mp.Runtime(workers=2, max_workers=MOST_WORKERS, log="off")
        self.workers = 2
        self.loaded: list[Loaded] = []
        self.sent: list[Sent] = []
        self.faults = self.kills = 0
        self.stopped: list[int] = []

    # ---- models and requests

    @initialize(target=models, kind=st.sampled_from(range(len(KINDS))))
    def first_model(self, kind: int) -> Loaded:
        return self.load(kind)

    @rule(target=models, kind=st.sampled_from(range(len(KINDS))))
    def another_model(self, kind: int) -> Loaded:
        return self.load(kind)

    def load(self, kind: int) -> Loaded:
        loaded = Loaded(self.runtime.load(KINDS[kind]), undisturbed()[kind])
        self.loaded.append(loaded)
        return loaded

    @rule(loaded=consumes(models))
    def unload(self, loaded: Loaded) -> None:
        loaded.model.unload()
        self.loaded.remove(loaded)
        with pytest.raises(RequestError, match="unloaded"):
            loaded.model.submit(X)

    @rule(target=requests, loaded=models)
    def submit(self, loaded: Loaded) -> Sent:
        sent = Sent(loaded.model.submit(X), loaded.expected, self.faults, self.kills)
        self.sent.append(sent)
        return sent

    @rule(loaded=models, number=st.integers(2, 12))
    def submit_many(self, loaded: Loaded, number: int) -> None:
        for _ in range(number):
            self.submit(loaded)

    @rule(sent=requests)
    def cancel(self, sent: Sent) -> None:
        if sent.future.cancel():
            sent.cancelled = True
            assert sent.future.cancelled()

    @rule(sent=consumes(requests))
    @precondition(lambda self: self.workers)
    def wait(self, sent: Sent) -> None:
        self.check(sent)
        self.sent.remove(sent)

    @rule(loaded=models)
    @precondition(lambda self: self.workers)
    def run(self, loaded: Loaded) -> None:
        self.check(self.submit(loaded))
        self.sent.pop()

    @rule(loaded=models)
    @precondition(lambda self: not self.workers)
    def run_without_workers(self, loaded: Loaded) -> None:
        with contextlib.suppress(RequestTimeout):
            assert loaded.model.run(X, timeout=0.01)["y"].tobytes() == loaded.expected  # those that leave may have taken it yet

    def check(self, sent: Sent) -> None:
        """It ends as it must: with the same bits, cancelled if we have done that, and failed only if enough workers were hit meanwhile."""
        try:
            got = sent.future.result(WATCHDOG_S)["y"].tobytes()
        except (CancelledError, RequestCancelled):
            assert sent.cancelled
            return
        except PoisonTile:
            assert self.faults - sent.faults >= 3 or self.kills - sent.kills >= 8
            return
        assert not sent.cancelled
        assert got == sent.expected

    # ---- workers

    @rule(n=st.integers(1, 3))
    def add(self, n: int) -> None:
        if self.workers + n > MOST_WORKERS:
            with pytest.raises(ResourceLimitError, match=f"max_workers={MOST_WORKERS}"):
                self.runtime.add_workers(n)
        else:
            self.workers += n
            assert self.runtime.add_workers(n) == self.workers

    @rule(n=st.integers(1, 3))
    def remove(self, n: int) -> None:
        if n > self.workers:
            with pytest.raises(RequestError, match=f"{n} workers? to remove"):
                self.runtime.remove_workers(n)
        else:
            self.workers -= n
            assert self.runtime.remove_workers(n) == self.workers

    @rule(total=st.integers(0, MOST_WORKERS))
    def scale(self, total: int) -> None:
        assert self.runtime.scale(total) == total
        self.workers = total

    @rule(at=st.integers(0, MOST_WORKERS), number=st.sampled_from(SIGNALS), ms=st.integers(0, 4))
    def hit(self, at: int, number: int, ms: int) -> None:
        pids = [w["pid"] for w in self.runtime.workers if w["pid"] and w["state"] == "running"]
        time.sleep(ms / 1e3)
        pid = pids[at % len(pids)] if pids else 0
        # What may be done next must not depend on how fast things went: hypothesis wants to be able to repeat it.
        self.stopped += [pid] if number == signal.SIGSTOP else []
        self.kills += number != signal.SIGSEGV
        self.faults += number == signal.SIGSEGV
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    @rule()
    @precondition(lambda self: self.stopped)
    def go_on(self) -> None:
        """Too late, perhaps: a stopped worker is ended after a while."""
        pid = self.stopped.pop()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @rule()
    def kill_all(self) -> None:
        for worker in self.runtime.workers:
            if worker["pid"] and worker["state"] == "running":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker["pid"], signal.SIGKILL)
                self.kills += 1

    # ---- other clients

    @rule(loaded=models, killed=st.booleans())
    def another_client(self, loaded: Loaded, killed: bool) -> None:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                futures = [loaded.model.submit(X) for _ in range(3)]
                if killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                if not self.workers:
                    futures.clear()
                status = sum(f.result(WATCHDOG_S)["y"].tobytes() != loaded.expected for f in futures)
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (-signal.SIGKILL if killed else 0)

    # ---- what always holds

    @invariant()
    def status_is_right(self) -> None:
        status = self.runtime.status()
        assert status["models"] or not self.loaded
        assert len(status["workers"]) <= MOST_WORKERS
        assert status["recovery"]["worker_deaths"] <= self.faults + self.kills
        assert all(w["state"] in {"joining", "running", "leaving", "dead"} for w in status["workers"])

    def busy(self) -> list[int]:
        """How many instances are in use, state by state."""
        return [number for state, number in self.runtime.status()["scheduler"]["instances"].items() if state != "free"]

    def teardown(self) -> None:
        pids = [self.runtime.pid]
        try:
            if not self.workers:
                self.scale(2)
            for sent in self.sent:
                self.check(sent)
            # Killed and stopped ones have been replaced, those that were told to leave have left, and nobody else has.
            wait_until(lambda: [w["state"] for w in self.runtime.workers] == ["running"] * self.workers, f"{self.workers} workers")
            wait_until(lambda: len(self.runtime.status()["clients"]) == 1, "other clients' ends to be seen")
            wait_until(lambda: set(self.busy()) == {0}, "every instance to be free")  # a moment after the client has its answer
            for loaded in self.loaded:
                assert loaded.model.run(X)["y"].tobytes() == loaded.expected
                loaded.model.unload()
            wait_until(lambda: not self.runtime.status()["models"], "models to be gone")
            wait_until(lambda: set(self.runtime.status()["memory"]) <= {"control", "doorbell", "client", "data"}, "segments to be gone")
            pids += [w["pid"] for w in self.runtime.workers]
        finally:
            self.runtime.close()
        wait_until(lambda: not any(map(alive, pids)), "processes of a closed runtime")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_whatever_happens() -> None:
    run_state_machine_as_test(
        RuntimeMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=not LONG,
            phases=[Phase.generate],  # shrinking what depends on the moment would take for ever, and lead nowhere
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
