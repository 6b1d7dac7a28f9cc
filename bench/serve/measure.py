"""Servers that take turns, round by round, under every load; those that are not measured sleep."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import aspen_mp
from aspen_mp.bench import clients, models
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.serve import peer_servers, requests, servers
from aspen_mp.bench.serve.client import Job
from aspen_mp.bench.serve.peer_servers import PeerServer
from aspen_mp.bench.serve.result import Served, ServeResult, Setting, percentile
from aspen_mp.bench.serve.servers import Caller

_START_S = 0.05
_SLICES = 4
"""Slices of a round, in which a server and `Model.run` take turns: seconds later the machine may be faster or slower."""


def measure(
    case: Case,
    cores: Sequence[int],
    transports: Sequence[str],
    loads: Sequence[tuple[int, float | None]],
    front_ends: int,
    sessions: Sequence[int],
    seconds: float,
    rounds: int,
    objective: Literal["latency", "throughput"],
    profile: Path | None,
    say: Callable[[str], None],
) -> ServeResult:
    """A network behind `aspen-mp serve`; with onnxruntime, behind the same code and in the servers of others that are installed.

    Args:
        case: The network.
        cores: CPUs of the servers. Clients may use all.
        transports: Some of `requests.TRANSPORTS`.
        loads: Connections, and requests a second of all of them, None: as fast as answers come.
        front_ends: Processes that answer for the runtime.
        sessions: For each number a server of each kind with that number of processes, each with a session of onnxruntime. Empty: without
            onnxruntime.
        seconds: Length of each setting in each round.
        rounds: How often all settings are measured.
        objective: What plans of the model are for, as of `Runtime.load`.
        profile: Of the server's runtime; None: the default one.
        say: Told what is being done.

    Raises:
        AspenError: A server or a client process did not start, or has ended.
    """
    graph = models.build(case.network, batch=case.batch, seq=case.seq, **case.options)
    feeds = models.inputs(graph, batch=case.batch, seq=case.seq)
    result = ServeResult(case.label, list(cores), front_ends, sum(array.nbytes for array in feeds.values()))
    with ExitStack() as stack:
        repository = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aspen-mp-bench-"))) / "models"
        file = servers.write(repository, graph.SerializeToString(), objective)
        say("starting servers")
        grpc = "grpc" in transports
        launched = None
        if profile is not None:
            launched = stack.enter_context(aspen_mp.Runtime(cores=list(cores), profile=str(profile), name=f"bench-serve-{os.getpid()}"))
        started = [stack.enter_context(servers.ours(repository, cores, front_ends, grpc, None if launched is None else launched.name))]
        started += [stack.enter_context(servers.stand_in(repository, file, cores, count, grpc)) for count in sessions]
        for peer, count in itertools.product(peer_servers.installed(transports), sessions):
            started.append(stack.enter_context(peer(repository.with_name(f"{peer.package}-{count}"), file, cores, count)))
        runtime = stack.enter_context(aspen_mp.connect(started[0].runtime))
        model = runtime.load(file, name=f"{requests.MODEL}/1", objective=objective)
        results = model.run(dict(feeds))
        callers = {}
        for way, server in itertools.product(transports, started):
            if way in server.at:
                request = server.request(way, feeds, results)
                if isinstance(server, PeerServer):
                    server.check(way, request, results)
                callers[server.engine, way] = stack.enter_context(Caller(way, server.at[way], request))
        settings = [Setting(server, way, *load) for way in transports for load in loads for server, own in callers if own == way]
        result.served = [Served(setting) for setting in settings]
        for (engine, transport), caller in callers.items():
            say(f"first requests: {engine}, {transport}")
            _turn(Served(Setting(engine, transport, 4)), caller, 0.2)
        clients.settle(runtime.pid, len(cores))
        result.pss_bytes = {server.engine: clients.pss([server.pid])[0] for server in started}
        if launched is not None:
            result.pss_bytes[started[0].engine] += clients.pss([launched.pid])[0]
        for number in range(rounds):
            result.map_per_s.append(_map(model, feeds, seconds))
            for served in result.served[:: 1 if number % 2 else -1]:
                own = served.setting
                say(f"round {number + 1} of {rounds}: {own.engine}, {own.transport}, {own.load}")
                alone = partial(_direct, model, feeds) if own.is_one_of_ours else None
                _turn(served, callers[own.engine, own.transport], seconds, alone)
    return result


def _turn(served: Served, caller: Caller, seconds: float, alone: Callable[[float], list[float]] | None = None) -> None:
    """A round of a setting. `alone`: measures `Model.run` for the seconds that it is told; it takes turns with the setting."""
    own, slices = served.setting, 1 if alone is None else _SLICES
    latencies_s: list[float] = []
    direct_s: list[float] = []
    busy_s = 0.0
    for _ in range(slices):
        if alone is not None:
            direct_s += alone(seconds / slices)
        job = Job(own.connections, own.rate, time.monotonic() + _START_S, seconds / slices)
        done = caller.run(job)
        latencies_s += done.latencies_s
        busy_s += max(done.end - job.start, 1e-9)
        served.failed += len(done.failed)
        served.why = served.why or next(iter(done.failed), "")
    served.per_s.append(len(latencies_s) / busy_s)
    for values, part in ((served.p50_ms, 0.5), (served.p99_ms, 0.99), (served.p999_ms, 0.999)):
        values.append(percentile(latencies_s, part))
    if direct_s:
        served.direct_ms.append(1e3 * median(direct_s))


def _direct(model: aspen_mp.Model, feeds: Mapping[str, Any], seconds: float) -> list[float]:
    """Times in seconds of a client without a server."""
    found: list[float] = []
    end = time.monotonic() + seconds
    inputs = dict(feeds)
    while len(found) < 3 or time.monotonic() < end:
        began = time.monotonic()
        model.run(inputs)
        found.append(time.monotonic() - began)
    return found


def _map(model: aspen_mp.Model, feeds: Mapping[str, Any], seconds: float) -> float:
    """Results a second of `Model.map`: what the runtime gives one client at most."""
    inputs, began, n = dict(feeds), time.monotonic(), 0
    with model.map(itertools.repeat(inputs)) as stream:
        for _ in stream:
            n += 1
            if time.monotonic() - began >= seconds:
                break
    return n / (time.monotonic() - began)
