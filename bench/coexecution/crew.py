"""Engines that hold several networks in one process: as many models of one of our runtimes, or as many sessions of another.

A crew has one entry point, a blocking call of one of its networks, which any number of threads may use. Settings of other runtimes are what
their documentation recommends for several networks in a process, by themselves and with what helps against spinning threads.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from aspen_mp.bench.peers.engines import ENGINES, Array

if TYPE_CHECKING:
    from aspen_mp.client.model import Model

Network = tuple[str, Mapping[str, Array]]
"""A model file, and the inputs of every request."""


class Outcome(IntEnum):
    """How a request ended. LATE: it was given up after its deadline; REFUSED: at once, because it could not have met it."""

    DONE = 0
    LATE = 1
    REFUSED = 2


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a request, for engines that know of them. `deadline_ms`: from the call on."""

    priority: str = "normal"
    deadline_ms: float | None = None


Call = Callable[[int, Terms], Outcome]
Presence = Callable[[int, bool], None]
"""A client of a network, by its number, comes or goes."""


def _unheeded(network: int, there: bool) -> None:
    """Most engines ignore clients that come and go."""


@dataclass(slots=True)
class Crew:
    """Networks that are loaded. `call`: one request to a network, by its number. `presence`: is told when a client of a network comes and
    goes."""

    call: Call
    settings: str
    close: Callable[[], None] = lambda: None
    presence: Presence = _unheeded


def load_aspen(networks: Sequence[Network], cores: list[int], instances: int = 4, replan: bool = False) -> Crew:
    """One runtime for all networks. `instances`: requests of a network that may execute at the same time. `replan`: whether plans are made
    again for networks that run beside a higher class, which goes on while others are measured."""
    with ExitStack() as stack:
        models = _models(stack, networks, cores, instances, replan)
        settings = f"one runtime, a worker a core, {instances} instances of each network"
        return Crew(_caller(models), settings + ", plans are made again" * replan, stack.pop_all().close)


def load_aspen_scheduled(networks: Sequence[Network], cores: list[int]) -> Crew:
    """As `load_aspen`, with a schedule of the networks that have clients, as workloads ask for one."""
    with ExitStack() as stack:
        models = _models(stack, networks, cores, 4)
        session = models[0][0]._link.session
        together: dict[int, list[int]] = {}
        lock = threading.Lock()

        def presence(network: int, there: bool) -> None:
            with lock:
                numbers = together.setdefault(network, [])
                if there:
                    numbers.append(session().run_together([models[network][0].number], "latency"))
                else:
                    session().run_apart(numbers.pop())

        settings = "one runtime, a worker a core, 4 instances of each network, which are scheduled as workloads are"
        return Crew(_caller(models), settings, stack.pop_all().close, presence)


def load_aspen_apart(networks: Sequence[Network], cores: list[int], instances: int = 1) -> Crew:
    """A runtime for each core, with all networks on each: the k-th network of the n-th core has the number n · networks + k."""
    with ExitStack() as stack:
        models = [model for core in cores for model in _models(stack, networks, [core], instances)]
        return Crew(_caller(models), "a runtime a core", stack.pop_all().close)


def _models(
    stack: ExitStack, networks: Sequence[Network], cores: list[int], instances: int, replan: bool = False
) -> list[tuple[Model, Mapping[str, Array]]]:
    import aspen_mp
    from aspen_mp import config

    profile = config.Profile(models=config.Models(replan=replan))
    runtime = stack.enter_context(aspen_mp.Runtime(workers=len(cores), cores=cores, profile=profile))
    return [(runtime.load(path, instances=instances), dict(feeds)) for path, feeds in networks]


def _caller(models: Sequence[tuple[Model, Mapping[str, Array]]]) -> Call:
    from aspen_mp.errors import DeadlineMissed

    def call(network: int, terms: Terms) -> Outcome:
        model, feeds = models[network]
        try:
            model.run(feeds, priority=terms.priority, deadline_ms=terms.deadline_ms)
        except DeadlineMissed as missed:
            return Outcome.REFUSED if missed.late_ms is None else Outcome.LATE
        return Outcome.DONE

    return call


def load_onnxruntime(networks: Sequence[Network], cores: list[int], spinning: bool = True, shared: bool = False) -> Crew:
    """A session for each network, called from as many threads as requests are in flight. `shared`: all sessions have one pool of threads,
    the global one; else each has a pool of its own with a thread a core."""
    import onnxruntime

    if shared:
        onnxruntime.set_global_thread_pool_sizes(len(cores), 1)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    if shared:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = len(cores)
        options.inter_op_num_threads = 1
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    sessions = [(onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]), dict(feeds)) for path, feeds in networks]

    def call(network: int, terms: Terms) -> Outcome:
        session, feeds = sessions[network]
        session.run(None, feeds)
        return Outcome.DONE

    pools = "one pool of threads for all sessions" if shared else f"a session a network, a thread a core, spinning {_switch(spinning)}"
    return Crew(call, f"{pools}, no priorities")


def load_openvino(networks: Sequence[Network], cores: list[int], streams: int = 1) -> Crew:
    """A compiled model for each network, with an inference request for each thread that calls. `streams`: requests of a network that run
    at the same time, each on its share of the cores; 0: as many as cores. The CPU plugin refuses MODEL_PRIORITY."""
    import openvino

    streams = streams or len(cores)
    config = {
        "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": len(cores),
        "NUM_STREAMS": streams,
        "ENABLE_CPU_PINNING": True,
    }
    core = openvino.Core()
    models = [(core.compile_model(path, "CPU", config), dict(feeds)) for path, feeds in networks]
    own = threading.local()

    def call(network: int, terms: Terms) -> Outcome:
        requests: dict[int, Any] = own.__dict__.setdefault("requests", {})
        model, feeds = models[network]
        if network not in requests:
            requests[network] = model.create_infer_request()
        requests[network].infer(feeds, share_inputs=True)
        return Outcome.DONE

    return Crew(call, f"streams of a network: {streams}, float32, threads pinned; the CPU plugin has no priorities")


def _switch(on: bool) -> str:
    return "on" if on else "off"


@dataclass(frozen=True, slots=True)
class CrewEngine:
    """`engine`: the runtime, as of `bench.peers.engines`; `load`: `(networks, cores, **options) -> Crew`, with `options`."""

    engine: str
    load: Callable[..., Crew]
    options: Mapping[str, Any]

    @property
    def installed(self) -> bool:
        """Whether it can be imported."""
        return importlib.util.find_spec(ENGINES[self.engine].module) is not None


CREWS = {
    "aspen-mp": CrewEngine("aspen-mp", load_aspen, {}),
    "aspen-mp-scheduled": CrewEngine("aspen-mp", load_aspen_scheduled, {}),
    "aspen-mp-apart": CrewEngine("aspen-mp", load_aspen_apart, {}),
    "onnxruntime": CrewEngine("onnxruntime", load_onnxruntime, {}),
    "onnxruntime-quiet": CrewEngine("onnxruntime", load_onnxruntime, {"spinning": False}),
    "onnxruntime-shared": CrewEngine("onnxruntime", load_onnxruntime, {"shared": True}),
    "openvino": CrewEngine("openvino", load_openvino, {}),
    "openvino-streams": CrewEngine("openvino", load_openvino, {"streams": 0}),
}
"""Engines by the names that people give."""
PEERS = ("onnxruntime", "onnxruntime-quiet", "onnxruntime-shared", "openvino", "openvino-streams")
"""Those beside ours, unless others are named."""


def load(engine: str, networks: Sequence[Network], cores: list[int], options: Mapping[str, Any]) -> Crew:
    """Load networks into an engine, and run each once."""
    os.sched_setaffinity(0, cores)
    it = CREWS[engine]
    crew = it.load(networks, cores, **{**it.options, **options})
    for network in range(len(networks)):
        crew.call(network, Terms())
    return crew


def wanted(names: Sequence[str] | None, scheduled: bool = False) -> tuple[list[str], list[str]]:
    """Engines to measure, ours first, and those that are not installed. `scheduled`: ours with schedules is one of them. ValueError for
    names that nobody has."""
    known = ["aspen-mp", *(["aspen-mp-scheduled"] if scheduled else []), *PEERS]
    chosen = list(names or known)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"there is no engine {', '.join(map(repr, unknown))}. Give some of {', '.join(known)}")
    chosen.sort(key=known.index)
    return [name for name in chosen if CREWS[name].installed], [name for name in chosen if not CREWS[name].installed]
