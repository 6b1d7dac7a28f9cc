"""A worker that is killed and does not end: the others go on without it, with other memory where it might still write."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from process_tools import WATCHDOG_S, alive, chain, feeds, wait_until
from test_hangs import HANG, SPIN, events, hook

import aspen_mp

# Traces a process, and lets it go on at every stop but the one in which it is about to end: a kill gets it no further than that. The kernel
# lets it end when the tracer does.
TRACER = """
import ctypes, errno, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
SEIZE, CONT, EVENT_EXIT, TRACE_EXIT, WALL = 0x4206, 7, 6, 0x40, 0x40000000
pid = int(sys.argv[1])
if libc.ptrace(SEIZE, pid, None, TRACE_EXIT):
    print(errno.errorcode[ctypes.get_errno()], flush=True)
    sys.exit()
print("traced", flush=True)
while True:
    status = os.waitpid(pid, WALL)[1]
    if status >> 8 == signal.SIGTRAP | EVENT_EXIT << 8:
        break
    libc.ptrace(CONT, pid, None, os.WSTOPSIG(status) if status >> 16 == 0 else 0)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def undying(pid: int) -> Iterator[subprocess.Popen[str]]:
    """From here on the process does not end, whatever is done to it."""
    with subprocess.Popen(
        [sys.executable, "-c", TRACER, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={}
    ) as tracer:
        assert tracer.stdout is not None
        said = tracer.stdout.readline().strip()
        if said == "EPERM":
            pytest.skip("no process may be traced here")
        assert said == "traced"
        try:
            yield tracer
        finally:
            tracer.kill()


def in_its_first_layers(runtime: aspen_mp.Runtime) -> bool:
    """Whether the only worker computes one of the first layers of `chain`: what it does now, its request will still be there to be hung in.
    What hangs behind the end of a request keeps no memory from anybody, and none is replaced."""
    return str(runtime.workers[0]["op"]).split(" ")[0] in {f"conv{k}" for k in range(1, 9)}


def test_a_worker_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs in a tile, is killed for that, and stays. Its request is computed by another worker in another arena; the place of the
    worker is taken by a new one; its row is free again when it has ended after all."""
    hook(tmp_path, monkeypatch, HANG)
    with aspen_mp.Runtime(workers=1, log="off") as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        (victim,) = runtime.workers
        with undying(victim["pid"]) as tracer:
            futures = [model.submit(feeds()) for _ in range(30)]  # with the tracer there: it takes longer to start than they do
            futures[0].result(WATCHDOG_S)
            wait_until(lambda: any(in_its_first_layers(runtime) for _ in range(200)), "a request that is not about to end")
            os.kill(victim["pid"], SPIN)
            assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 30
            assert alive(victim["pid"])
            (event,) = events(runtime, "worker-abandoned")
            assert event["pid"] == victim["pid"]
            recovery = runtime.status()["recovery"]
            assert (recovery["abandoned"], recovery["arenas_replaced"], recovery["hung"]) == (1, 1, 1)
            assert {w["pid"]: w["process"] for w in runtime.workers}[victim["pid"]] == "abandoned"
            assert model.run(feeds())["y"].tobytes() == expected
            assert runtime.scale(2) == 2
            wait_until(lambda: sorted(w["process"] for w in runtime.workers) == ["abandoned", "running", "running"], "two workers")
            other = chain(runtime)  # what is announced is not waited for by what will never see it
            assert other.run(feeds())["y"].tobytes() == expected
            tracer.kill()
            wait_until(lambda: not runtime.status()["recovery"]["abandoned"], "the worker to end")
        assert [w["process"] for w in runtime.workers] == ["running"] * 2
        assert len(events(runtime, "worker-reaped")) == 1
        assert model.run(feeds())["y"].tobytes() == expected


def test_a_runtime_ends_without_it() -> None:
    with aspen_mp.Runtime(workers=2, log="off") as runtime:
        model = chain(runtime)
        model.run(feeds())
        victim = runtime.workers[0]["pid"]
        held = undying(victim)
        held.__enter__()
    try:
        assert alive(victim)
    finally:
        held.__exit__(None, None, None)
    deadline = time.monotonic() + WATCHDOG_S
    while alive(victim):
        assert time.monotonic() < deadline, "watchdog: the worker to end"
        time.sleep(0.005)
