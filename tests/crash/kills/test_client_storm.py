"""Clients that are killed at any instant cost nobody else anything, and their memory comes back.

Children forked from a process that has handles of a runtime do everything a client does, and are killed in the middle of it, again and
again, beside threads whose every answer is checked.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
import traceback
from typing import NoReturn

import numpy as np
import small_models
from process_tools import WATCHDOG_S, chain, feeds, wait_until

import aspen_mp

VICTIMS = 1000 if os.environ.get("ASPEN_MP_TIER") == "long" else 40
AT_ONCE = 3


def doomed(runtime: aspen_mp.Runtime, model: aspen_mp.Model, x: dict[str, np.ndarray], seed: int) -> NoReturn:
    """Everything a client does, without end."""
    rng = random.Random(seed)
    futures = []
    try:
        while True:
            what = rng.randrange(6)
            if what == 0:
                model.run(x)
            elif what == 1:
                futures += [model.submit(x) for _ in range(rng.randrange(1, 40))]
            elif what == 2 and futures:
                futures.pop(rng.randrange(len(futures))).cancel()
            elif what == 3 and futures:
                futures.pop().result(WATCHDOG_S)
            elif what == 4:
                own = runtime.load(small_models.mlp("n", seed=rng.randrange(1 << 30)))
                own.submit({"x": np.ones((rng.randrange(1, 9), 16), np.float32)})
                if rng.random() < 0.5:
                    own.unload()
            else:
                runtime.status()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def memory(runtime: aspen_mp.Runtime) -> dict[str, dict[str, int]]:
    """Of everything but what the asking client itself has."""
    return {role: held for role, held in runtime.status()["memory"].items() if role != "data"}


def test_clients_are_killed_at_any_instant() -> None:
    rng = random.Random(2)
    with aspen_mp.Runtime(workers=2, log="off") as runtime:
        model = chain(runtime)
        expected = model.run(feeds())["y"].tobytes()
        before, models = memory(runtime), len(runtime.status()["models"])
        stop = threading.Event()
        wrong: list[object] = []
        answers = [0, 0]

        def steady(k: int) -> None:
            try:
                while not stop.is_set():
                    if model.run(feeds(), timeout=WATCHDOG_S)["y"].tobytes() != expected:
                        wrong.append("other bits")
                    answers[k] += 1
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=steady, args=(k,)) for k in range(len(answers))]
        for thread in threads:
            thread.start()
        due: list[tuple[float, int]] = []
        exits: list[int] = []
        try:
            for number in range(VICTIMS):
                pid = os.fork()
                if pid == 0:
                    doomed(runtime, model, feeds(), number)
                due.append((time.monotonic() + rng.random() ** 2 * 0.6, pid))
                while len(due) >= AT_ONCE or (due and number == VICTIMS - 1):
                    at, victim = due.pop(due.index(min(due)))
                    time.sleep(max(0.0, at - time.monotonic()))
                    os.kill(victim, signal.SIGKILL)
                    exits.append(os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]))
        finally:
            for _, victim in due:
                os.kill(victim, signal.SIGKILL)
                os.waitpid(victim, 0)
            stop.set()
            for thread in threads:
                thread.join(WATCHDOG_S)
        assert wrong == []
        assert min(answers) > 0
        assert exits == [-signal.SIGKILL] * VICTIMS  # none ended by an error of its own
        wait_until(lambda: len(runtime.status()["clients"]) == 1, "the ends of all clients to be seen")
        wait_until(lambda: len(runtime.status()["models"]) == models, "models of dead clients to be gone")
        wait_until(lambda: memory(runtime) == before, "memory of dead clients to come back")
        status = runtime.status()
        assert status["scheduler"]["draining"] == 0
        assert status["recovery"]["worker_deaths"] == 0
        assert status["memory"]["data"]["bytes"] == sum(client["data_bytes"] for client in status["clients"])
        assert model.run(feeds())["y"].tobytes() == expected
