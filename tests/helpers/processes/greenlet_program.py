"""A program whose threads are greenlets: ``greenlet_program.py LIBRARY CASE SEED`` prints "right" where all went as it should.

The library patches first. After that the program uses Python's own threads and clocks only, so it is the same for each library.
"""

from __future__ import annotations

import sys
import warnings


def patch(library: str) -> None:
    if library == "gevent":
        from gevent import monkey

        monkey.patch_all()
    elif library == "gevent, threads alone":
        from gevent import monkey

        monkey.patch_all(socket=False, select=False, subprocess=False, ssl=False, os=False, signal=False)
    else:
        warnings.simplefilter("ignore")  # it says of itself that it is deprecated
        import eventlet

        eventlet.monkey_patch()


if sys.argv[2] != "late":
    patch(sys.argv[1])

import os  # noqa: E402
import random  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402

import numpy as np  # noqa: E402
import small_models  # noqa: E402
from onnx import numpy_helper  # noqa: E402

import aspen_mp  # noqa: E402
from aspen_mp import errors  # noqa: E402

SHAPE = (4, 16)


def feeds(seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)}


class Program:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.model_file = small_models.mlp()
        self.runtime = aspen_mp.Runtime(workers=1)
        self.model = self.runtime.load(self.model_file)
        self.session = aspen_mp.InferenceSession(self.model_file, runtime=self.runtime)
        weights = {each.name: numpy_helper.to_array(each) for each in self.model_file.graph.initializer}
        hidden = [np.maximum(feeds(k)["x"] @ weights["w1"] + weights["b1"], 0) for k in range(8)]
        self.expected = [each @ weights["w2"] for each in hidden]

    def check(self, k: int, result: dict[str, np.ndarray]) -> None:
        assert np.allclose(result["y"], self.expected[k], rtol=1e-4, atol=1e-4), f"request {k} has the result of another"

    # ---- ways to ask

    def run(self, k: int) -> None:
        self.check(k, self.model.run(feeds(k)))

    def run_in_time(self, k: int) -> None:
        self.check(k, self.model.run(feeds(k), timeout=60))

    def result(self, k: int) -> None:
        self.check(k, self.model.submit(feeds(k)).result(60))

    def callback(self, k: int) -> None:
        told = threading.Event()
        future = self.model.submit(feeds(k), timeout=60)
        future.add_done_callback(lambda _: told.set())
        assert told.wait(60)
        self.check(k, future.result())

    def map(self, k: int) -> None:
        order = [(k + each) % len(self.expected) for each in range(5)]
        for each, result in zip(order, self.model.map(feeds(each) for each in order), strict=True):
            self.check(each, result)

    def cancel(self, k: int) -> None:
        future = self.model.submit(feeds(k))
        if not future.cancel():
            self.check(k, future.result())

    def run_async(self, k: int) -> None:
        told = threading.Event()
        answers: list[object] = []
        self.session.run_async(None, feeds(k), lambda *answer: (answers.append(answer), told.set()), None)
        assert told.wait(60)
        self.check(k, {"y": answers[0][0][0]})

    def wrong(self, k: int) -> None:
        try:
            self.model.run({"x": np.zeros((4, k + 17), np.float32)})
        except errors.RequestError:
            return
        raise AssertionError("a wrong shape has a result")

    def workload(self, k: int) -> None:
        seen: list[np.ndarray] = []
        with self.runtime.workload() as workload:
            workload.add(self.model_file, name="n", feeds=[feeds(k)] * 3, on_result=lambda result: seen.append(result["y"]))
            workload.start()
            assert workload.wait(60)
        assert len(seen) == 3
        for each in seen:
            self.check(k, {"y": each})

    WAYS = (run, run_in_time, result, callback, map, cancel, run_async, wrong, workload)
    WAITS = (run, run_in_time, result, callback, map, run_async)

    # ---- cases

    def drawn(self) -> None:
        """Many threads ask in drawn ways, more at once than there are slots."""
        failures: list[BaseException] = []
        ended = []

        def asks(jobs: list[tuple[Callable[[Program, int], None], int]]) -> None:
            try:
                for ask, k in jobs:
                    ask(self, k)
                ended.append(1)
            except BaseException as error:
                failures.append(error)

        draw = self.random
        plans = [[(draw.choice(self.WAYS), draw.randrange(8)) for _ in range(draw.randrange(1, 6))] for _ in range(12)]
        plans += [[(Program.run, draw.randrange(8))] for _ in range(300)]
        draw.shuffle(plans)
        threads = [threading.Thread(target=asks, args=(plan,)) for plan in plans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        assert len(ended) == len(plans)

    def stopped(self) -> None:
        """A worker is stopped, and goes on when another thread says so, which it can only if this one's wait lets it."""
        worker = self.runtime.status()["workers"][0]["pid"]
        for way in self.WAITS:
            asked = threading.Event()

            def free(asked: threading.Event = asked) -> None:
                asked.wait()
                os.kill(worker, signal.SIGCONT)

            other = threading.Thread(target=free)
            other.start()
            os.kill(worker, signal.SIGSTOP)
            asked.set()
            way(self, self.random.randrange(8))
            other.join()

    def late_result(self) -> None:
        """A time limit ends the wait for a stopped worker, and what the request has left behind harms no other one."""
        worker = self.runtime.status()["workers"][0]["pid"]
        os.kill(worker, signal.SIGSTOP)
        try:
            for limited in (lambda: self.model.run(feeds(0), timeout=0.05), lambda: self.model.submit(feeds(0), timeout=0.05).result(60)):
                try:
                    limited()
                    raise AssertionError("a stopped worker has answered")
                except errors.RequestTimeout:
                    pass
        finally:
            os.kill(worker, signal.SIGCONT)
        for k in range(8):
            self.run(k)

    def lost(self) -> None:
        """The planner process is killed while threads wait."""
        worker = self.runtime.status()["workers"][0]["pid"]
        outcomes: list[BaseException | None] = []

        def asks(way: Callable[[Program, int], None]) -> None:
            try:
                way(self, 0)
                outcomes.append(None)
            except BaseException as error:
                outcomes.append(error)

        os.kill(worker, signal.SIGSTOP)
        threads = [threading.Thread(target=asks, args=(way,)) for way in (Program.run, Program.result, Program.map)]
        for thread in threads:
            thread.start()
        time.sleep(0)
        os.kill(self.runtime.own_pid, signal.SIGKILL)
        os.kill(worker, signal.SIGCONT)
        for thread in threads:
            thread.join()
        assert len(outcomes) == 3
        assert all(isinstance(each, errors.RuntimeLost) or each is None for each in outcomes), outcomes

    def late(self) -> None:
        raise AssertionError("a runtime was used")


def main() -> None:
    _, library, case, seed = sys.argv
    if case == "late":
        patch(library)
        try:
            Program(0)
        except errors.RequestError as error:
            if "patched" not in str(error):
                raise
    else:
        program = Program(int(seed))
        getattr(program, case)()
        program.runtime.close()
    print("right")


main()
