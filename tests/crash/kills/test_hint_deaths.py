"""Workers die while hints of nonsense are in force: every request ends with the right result, and no token is lost."""

from __future__ import annotations

import os
import random
import signal

from process_tools import WATCHDOG_S, chain, feeds, wait_until

import aspen_mp
from aspen_mp.shm.bindings._control import CONTROL_BYTES, DOORBELL_BYTES, ControlTable, role_of
from aspen_mp.shm.bindings._mapping import Mapping
from aspen_mp.shm.tables import LIMITS

KILLS = 60 if os.environ.get("ASPEN_MP_TIER") == "long" else 6


def mapped(pid: int, role: str, nbytes: int) -> Mapping:
    """A segment of a process, as that process has it."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{number}"
        if os.readlink(path).startswith(("/dev/shm/", "/memfd:")) and os.stat(path).st_size >= nbytes:
            fd = os.open(path, os.O_RDWR)
            try:
                found = Mapping(fd, os.stat(path).st_size, True)
            finally:
                os.close(fd)
            if role_of(found) == role:
                return found
    raise AssertionError(f"process {pid} has no {role} segment")


def test_tokens_survive_the_death_of_workers() -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    with aspen_mp.Runtime(workers=2) as runtime:
        models = [chain(runtime) for _ in range(2)]
        expected = [model.run(feeds())["y"].tobytes() for model in models]
        table = ControlTable(mapped(runtime.pid, "control", CONTROL_BYTES), mapped(runtime.pid, "doorbell", DOORBELL_BYTES))
        for _ in range(KILLS):
            table.set_tokens(1)
            hints = [(draw.choice([0, 1, 2]), draw.choice([0, 1]), draw.random() < 0.5) for _ in range(LIMITS["depths"])]
            table.set_hints(dict.fromkeys(table.plans(), hints))
            futures = [model.submit(feeds()) for model in models * 4]
            victims = [worker["pid"] for worker in runtime.workers]
            os.kill(draw.choice(victims), signal.SIGKILL)
            assert [future.result(WATCHDOG_S)["y"].tobytes() for future in futures] == expected * 4, f"seed {seed}"
            wait_until(lambda: len(runtime.workers) == 2, "a new worker")
        wait_until(lambda: all(worker["state"] == "running" for worker in runtime.workers), "workers to run")
        assert [model.run(feeds())["y"].tobytes() for model in models] == expected
        wait_until(lambda: not any(table.hints()["holders"]) and not table.hints()["at_work"], "tokens to be given back")
