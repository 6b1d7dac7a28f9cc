"""Many client processes: one runtime that serves all of them, beside as many processes that each have an engine of their own.

It measures throughput and latency with one client process and with several, with the same number of requests in flight. It also measures
how evenly the clients are served. It also measures the memory of all processes together (the sum of their proportional set sizes). Beside
it onnxruntime as most servers run
it: every process has a session, a copy of the weights, and a pool of threads for all cores. Settings take turns, round by round; whoever is
not at it sleeps.
The runtime keeps the plan that it has made when it loaded the network.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

import aspen_mp
from aspen_mp import config
from aspen_mp.bench import models
from aspen_mp.bench.child import Child
from aspen_mp.bench.load import Spread
from aspen_mp.bench.peers.cases import Case
from aspen_mp.control.wire import python
from aspen_mp.shm.bindings import _control

SETTLE_S = 20.0
"""How long a process that planned a model may take to end before memory is looked at."""


@dataclass(frozen=True, slots=True)
class Setting:
    """`processes` client processes, each with so many requests in flight."""

    engine: str
    processes: int
    in_flight: int

    @property
    def label(self) -> str:
        return f"{self.engine}, {self.processes} process{'es' if self.processes > 1 else ''} with {self.in_flight} in flight"


@dataclass(slots=True)
class Found:
    """Of one setting. `per_s`: images (rows of a batch) a second, one value for each round. `pss_bytes`: of all processes that take part,
    of which there are `processes`. `answered`: requests of each client process, over all rounds."""

    setting: Setting
    per_s: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    pss_bytes: int = 0
    processes: int = 0
    answered: list[int] = field(default_factory=list)

    @property
    def spread(self) -> Spread:
        return Spread.of(self.latencies_s)

    @property
    def tail(self) -> float:
        """The 99th percentile of latency in units of the median."""
        return self.spread.p99_ms / self.spread.p50_ms

    @property
    def evenness(self) -> float:
        """Requests of the client that had the fewest answered, in units of the one that had the most."""
        return min(self.answered, default=1) / max(self.answered, default=1)


@dataclass(slots=True)
class ClientsResult:
    case: str
    cores: list[int]
    weight_bytes: int
    found: list[Found] = field(default_factory=list)
    weights_pss_bytes: int = 0
    """Bytes of the mappings of packed weights in all processes, with the most clients: one copy, however many map it."""

    def of(self, engine: str, most: bool) -> Found | None:
        found = sorted((f for f in self.found if f.setting.engine == engine), key=lambda f: f.setting.processes)
        return found[-1 if most else 0] if found else None

    def ratio(self, engine: str) -> tuple[float, float] | None:
        """Throughput and memory of many client processes in units of those of one; medians of rounds that were measured side by side."""
        one, many = self.of(engine, False), self.of(engine, True)
        if one is None or many is None or one is many:
            return None
        return median(b / a for a, b in zip(one.per_s, many.per_s, strict=True)), many.pss_bytes / one.pss_bytes

    @property
    def verdict(self) -> str:
        parts = []
        for engine in dict.fromkeys(f.setting.engine for f in self.found):
            ratio, many = self.ratio(engine), self.of(engine, True)
            if ratio is None or many is None:
                continue
            parts.append(
                f"{engine}: {many.setting.processes} client processes have {ratio[0]:.3f} of the throughput of one "
                f"and {ratio[1]:.2f} of its memory, p99 is {many.tail:.2f} times the median, "
                f"and the client served least has {many.evenness:.3f} of the throughput of the one served most"
            )
        if self.weight_bytes:
            parts.append(
                f"packed weights {self.weight_bytes / 2**20:.0f} MiB, mapped {self.weights_pss_bytes / self.weight_bytes:.2f} times"
            )
        return f"{self.case}: " + "; ".join(parts)


def measure(
    case: Case, cores: Sequence[int], clients: int, seconds: float, rounds: int, peers: bool, say: Callable[[str], None]
) -> ClientsResult:
    """`clients` processes with one request in flight each against one with all of them, on one runtime with a worker on each of `cores`.
    With `peers`, onnxruntime runs beside it, where it is installed. `seconds`: of each setting in each round."""
    graph = models.build(case.network, batch=case.batch, seq=case.seq, **case.options)
    feeds = models.inputs(graph, batch=case.batch, seq=case.seq)
    result = ClientsResult(case.label, list(cores), 0)
    with ExitStack() as stack:
        profile = config.Profile(models=config.Models(replan=False))
        runtime = stack.enter_context(aspen_mp.Runtime(workers=len(cores), cores=list(cores), profile=profile))
        say("loading into aspen-mp")
        model = runtime.load(graph, instances=clients)
        seats: dict[Setting, list[_Seat]] = {}
        engines: list[tuple[str, Any, int]] = [("aspen-mp", model, clients)]
        if peers and importlib.util.find_spec("onnxruntime") is not None:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model.onnx"
            file.write_bytes(graph.SerializeToString())
            engines.append(("onnxruntime", (str(file), list(cores)), 1))
        del graph
        for engine, what, alone in engines:
            have: list[_Seat] = []
            for setting in dict.fromkeys((Setting(engine, 1, alone), Setting(engine, clients, 1))):
                say(f"starting {setting.label}")
                have += [stack.enter_context(_Seat(engine, what, feeds)) for _ in range(setting.processes - len(have))]
                seats[setting] = list(have)
                found = Found(setting)
                result.found.append(found)
                _turn(seats[setting], setting, 0.0)  # memory is what it is after a request
                roots = [seat.pid for seat in have] + ([runtime.pid] if engine == "aspen-mp" else [])
                if engine == "aspen-mp":
                    settle(runtime.pid, len(cores))
                found.pss_bytes, found.processes = pss(roots)
                if engine == "aspen-mp":
                    result.weights_pss_bytes = weights_pss(roots)
        result.weight_bytes = sum(known["weight_bytes"] for known in runtime.status()["models"])
        for number in range(rounds):
            for found in result.found[:: 1 if number % 2 else -1]:
                say(f"round {number + 1} of {rounds}: {found.setting.label}")
                by_client, took = _turn(seats[found.setting], found.setting, seconds)
                found.per_s.append(sum(map(len, by_client)) * case.batch / took)
                found.latencies_s += chain.from_iterable(by_client)
                before = found.answered or [0] * len(by_client)
                found.answered = [a + len(b) for a, b in zip(before, by_client, strict=True)]
    return result


def _turn(seats: Sequence[_Seat], setting: Setting, seconds: float) -> tuple[list[list[float]], float]:
    """Everybody at once: the latencies of each client's requests, and how long it took from the first beginning to the last end."""
    start = time.monotonic() + 0.02
    for seat in seats:
        seat.tell((setting.in_flight, start, seconds))
    answers = [seat.hear() for seat in seats]
    ends = [end for end, _ in answers]
    return [found for _, found in answers], max(ends) - start


# ---- memory


def settle(pid: int, workers: int) -> None:
    """Waits until the process that planned the model has gone: it does not take part in serving."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        others = [p for p in psutil.Process(pid).children(recursive=True) if not _serves(p)]
        if not others:
            return
        psutil.wait_procs(others, timeout=deadline - time.monotonic())


def _serves(process: psutil.Process) -> bool:
    try:
        return bool(process.name().startswith(("aspen-w", "aspen-zygote")))
    except psutil.NoSuchProcess:
        return False  # the next look does not find it


def family(roots: Sequence[int]) -> list[psutil.Process]:
    """Processes and their children."""
    processes: dict[int, psutil.Process] = {}
    for root in roots:
        process = psutil.Process(root)
        processes |= {p.pid: p for p in (process, *process.children(recursive=True))}
    return list(processes.values())


def pss(roots: Sequence[int]) -> tuple[int, int]:
    """Sum over processes and their children, and how many there are."""
    processes = family(roots)
    return sum(process.memory_full_info().pss for process in processes), len(processes)


def cpu_seconds(roots: Sequence[int]) -> float:
    """CPU time so far of processes and their children."""
    times = [process.cpu_times() for process in family(roots)]
    return float(sum(time.user + time.system for time in times))


def weights_pss(roots: Sequence[int]) -> int:
    """The same of mappings of packed weights: segments, and files of the plan cache that are mapped in their place."""
    mappings = [(process.pid, mapping) for process in family(roots) for mapping in process.memory_maps(grouped=False)]
    weights = {mapping.path for pid, mapping in mappings if _of_cache(mapping.path) or _begins_weights(pid, mapping)}
    return sum(mapping.pss for _, mapping in mappings if mapping.path in weights)


def _of_cache(path: str) -> bool:
    """Whether it is a file of packed weights in a plan cache."""
    return Path(path).parent.name == "weights"


def _begins_weights(pid: int, mapping: Any) -> bool:
    """Segments have no names: what they are is written at their beginning."""
    if not mapping.path.startswith(("/dev/shm/", "/memfd:")):
        return False
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(int(mapping.addr.partition("-")[0], 16))
        return _control.role_of(memory.read(_control.DATA_FIRST)) == "weights"


# ---- client processes


class _Seat(Child):
    """A client process that does nothing until it is told to."""

    def __init__(self, engine: str, what: Any, feeds: Mapping[str, Any]) -> None:
        super().__init__(python.command("aspen_mp.bench.client", function="client"))
        self.tell((engine, what, dict(feeds)))
        self.hear()


# ---- picture


def plot(result: ClientsResult, file: Path) -> None:
    """Throughput, latency and memory of each setting, as a PNG."""
    from aspen_mp.bench.figures.picture import pyplot, save

    labels = [f"{f.setting.engine}\n{f.setting.processes} × {f.setting.in_flight}" for f in result.found]
    colours = ["tab:blue" if f.setting.engine == "aspen-mp" else "tab:orange" for f in result.found]
    at = np.arange(len(labels))
    figure, (left, middle, right) = pyplot().subplots(1, 3, figsize=(11, 4), layout="constrained")
    left.bar(at, [median(f.per_s) for f in result.found], color=colours)
    left.set(title="images/s")
    p50, p99 = ([getattr(f.spread, key) for f in result.found] for key in ("p50_ms", "p99_ms"))
    middle.bar(at, p99, color=colours, alpha=0.4, label="p99")
    middle.bar(at, p50, color=colours, label="p50")
    middle.set(title="latency, ms (dark: median, light: p99)")
    right.bar(at, [f.pss_bytes / 2**20 for f in result.found], color=colours)
    right.set(title="memory of all processes, MiB (PSS)")
    for axes in (left, middle, right):
        axes.set_xticks(at, labels, fontsize="small")
    figure.suptitle(f"{result.case}: client processes × requests in flight, {len(result.cores)} cores")
    save(figure, file)
