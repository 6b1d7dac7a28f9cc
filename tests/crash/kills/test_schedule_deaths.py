"""Workloads start and stop while workers, and children that search for schedules, are killed: every result is right, and hints go."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress
from pathlib import Path

import small_models
from process_tools import WATCHDOG_S, chain, feeds, wait_until

import aspen_mp
from aspen_mp.client.workload import Results

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
WORKLOADS = 40 if LONG else 3
SEEN = 400 if LONG else 100
"""Results of a workload before it is stopped."""


class Seen:
    """Results of a workload, of which some threads tell."""

    def __init__(self, right: bytes) -> None:
        self.enough = threading.Event()
        self.wrong = 0
        self._right = right
        self._left = SEEN

    def take(self, results: Results) -> None:
        """A result."""
        self.wrong += results["y"].tobytes() != self._right
        self._left -= 1
        if self._left <= 0:
            self.enough.set()


def searching(planner: int) -> list[int]:
    """Pids of the children of a planner process that search for schedules."""
    found = []
    for pid in Path(f"/proc/{planner}/task/{planner}/children").read_text().split():
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "aspen-schedule":
                found.append(int(pid))
    return found


def test_workloads_come_and_go_while_processes_are_killed() -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    with aspen_mp.Runtime(workers=2) as runtime:
        right = chain(runtime).run(feeds())["y"].tobytes()
        for number in range(WORKLOADS):
            seen = Seen(right)
            with runtime.workload(objective=draw.choice(["latency", "throughput"]), schedule=True) as workload:
                for k in range(2):
                    workload.add(small_models.conv_chain(24, 64, 64), name=f"n{k}", feeds=feeds, share=1.0 + k, on_result=seen.take)
                workload.start()
                while not seen.enough.wait(draw.uniform(0.05, 0.3)):
                    victims = [worker["pid"] for worker in runtime.workers] + 2 * searching(runtime.pid)
                    with suppress(ProcessLookupError):
                        os.kill(draw.choice(victims), signal.SIGKILL)
                    wait_until(lambda: len(runtime.workers) == 2, "a new worker")
                assert [each["error"] for each in workload.status()] == [None, None], f"seed {seed}, workload {number}"
            assert not seen.wrong, f"seed {seed}, workload {number}"
            assert runtime.status()["schedule"] is None
        assert chain(runtime).submit(feeds()).result(WATCHDOG_S)["y"].tobytes() == right
        wait_until(lambda: not searching(runtime.pid), "searches to end")
