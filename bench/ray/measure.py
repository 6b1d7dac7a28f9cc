"""A Ray cluster of one node: actors of each engine, measured in turns, and a client without Ray on the runtime of the node."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from aspen_mp.bench import clients, models
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.ray.actors import ENGINES, Ours
from aspen_mp.bench.ray.result import ActorsFound, RayResult

STORE_BYTES: Final = 512 << 20
CALLS: Final = 2
"""Calls of each actor that run at the same time, each in a thread, so that one computes while another gets its batch."""


def measure(
    case: Case, cores: Sequence[int], counts: Sequence[int], seconds: float, rounds: int, peers: bool, say: Callable[[str], None]
) -> RayResult:
    """Each number of actors of `counts`, with `peers` beside as many with onnxruntime, where it is installed.

    `seconds`: of each setting in each round. `case`: its batch is the rows of a batch.
    """
    graph = models.build(case.network, batch=case.batch, seq=case.seq, **case.options)
    feeds = models.inputs(graph, batch=case.batch, seq=case.seq)
    result = RayResult(case.label, list(cores), case.batch)
    engines = ["aspen-mp", *(["onnxruntime"] if peers and importlib.util.find_spec("onnxruntime") is not None else [])]
    with tempfile.TemporaryDirectory() as folder, _node(len(cores)):
        import ray

        file = Path(folder) / "model.onnx"
        file.write_bytes(graph.SerializeToString())
        say("starting the runtime of the node")
        direct = Ours(str(file), list(cores))
        direct.run(feeds)
        batch = ray.put(dict(feeds))
        actors: dict[str, list[Any]] = {engine: [] for engine in engines}
        for engine in engines:
            for count in sorted(counts):
                say(f"starting {count} actors with {engine}")
                actors[engine] += _start(engine, count - len(actors[engine]), str(file), cores)
                result.found.append(_memory(engine, actors[engine], batch, len(cores)))
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            result.direct_per_s.append(_direct(direct, feeds, seconds) * case.batch)
            for found in result.found[:: 1 if number % 2 else -1]:
                used = actors[found.engine][: found.actors]
                roots = _processes(used)
                before = clients.cpu_seconds(roots)
                calls, per_s = _turn(used, batch, seconds)
                found.per_s.append(per_s * case.batch)
                found.cpu_ms_per_row.append(1e3 * (clients.cpu_seconds(roots) - before) / (calls * case.batch))
        direct.close()
    return result


@contextmanager
def _node(cpus: int) -> Iterator[None]:
    """A cluster of this machine, which ends with the block."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=STORE_BYTES, log_to_driver=False, logging_level="error")
    try:
        yield
    finally:
        ray.shutdown()


def _start(engine: str, count: int, model: str, cores: Sequence[int]) -> list[Any]:
    import ray

    actor = ray.remote(ENGINES[engine]).options(num_cpus=0, max_concurrency=CALLS)
    return [actor.remote(model, list(cores)) for _ in range(count)]


def _memory(engine: str, actors: Sequence[Any], batch: Any, workers: int) -> ActorsFound:
    """Measures memory after each actor has run the model."""
    import ray

    ray.get([actor.run.remote(batch) for actor in actors])
    roots = _processes(actors)
    planners = roots[len(actors) :]
    for planner in planners:
        clients.settle(planner, workers)
    weights = clients.weights_pss(roots) if planners else 0
    return ActorsFound(engine, len(actors), [], [], clients.pss(roots)[0], weights)


def _processes(actors: Sequence[Any]) -> list[int]:
    """Those of the actors, then the planner processes of their runtimes."""
    import ray

    about = ray.get([actor.about.remote() for actor in actors])
    return [pid for pid, _ in about] + sorted({planner for _, planner in about if planner})


def _direct(client: Ours, feeds: Mapping[str, Any], seconds: float) -> float:
    """Batches a second of a client that runs one after the other."""
    count, start = 0, time.monotonic()
    while not count or time.monotonic() < start + seconds:
        client.run(dict(feeds))
        count += 1
    return count / (time.monotonic() - start)


def _turn(actors: Sequence[Any], batch: Any, seconds: float) -> tuple[int, float]:
    """Batches of some actors, each with `CALLS` calls until the time is over, and batches a second."""
    import ray

    start = time.monotonic()
    calls = {actor.run.remote(batch): actor for _ in range(CALLS) for actor in actors}
    count = 0
    while calls:
        (done, *_), _ = ray.wait(list(calls), num_returns=1)
        actor = calls.pop(done)
        count += 1
        if time.monotonic() < start + seconds:
            calls[actor.run.remote(batch)] = actor
    return count, count / (time.monotonic() - start)
