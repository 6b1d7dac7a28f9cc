"""`Runtime.status` for Prometheus (extra ``metrics``).

A process of its own asks for the status whenever it is scraped: the planner process is one event loop and serves no HTTP. Counters of a
worker begin anew with the worker that takes a dead one's place, as `rate` expects. Add workers up after it, not before: ``sum by (outcome)
(rate(aspen_mp_worker_requests_total[1m]))``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric

import aspen_mp
from aspen_mp.shm.bindings._tally import OUTCOMES
from aspen_mp.shm.errors import AspenError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from aspen_mp.client.runtime import Runtime

ANSWER_S = 5.0
"""How long a scrape waits for a runtime: less than Prometheus waits for the scrape."""
_SCHEDULED = {
    "requests": ("requests", "Requests that workers ended, one for each stage."),
    "queue_s": ("queue_seconds", "Time of these requests from submission to start."),
    "run_s": ("run_seconds", "Time of these requests from start to end."),
    "missed": ("deadlines_missed", "Requests that ended after their deadline."),
    "refused": ("deadlines_refused", "Requests that were refused because their deadline could not be met."),
    "expired": ("deadlines_expired", "Requests whose deadline passed while they waited."),
}
_MADE = {
    "one_shape": "for one set of shapes",
    "range": "for a range of lengths",
    "cached": "read from the plan cache",
}
_NEW_SHAPES = {
    "derived": ("derived_shapes", "New shapes that a plan for a range served at once, each once for each client."),
    "waited": ("plan_waits", "Waits of requests for a plan, one for each stage."),
    "waited_s": ("plan_wait_seconds", "Time in which requests waited for a plan."),
}
_ACTIVITIES = ("kernel", "schedule", "search", "sleep")


def families(status: Mapping[str, Any]) -> Iterator[Metric]:
    """A status as Prometheus metrics; times in seconds, memory in bytes."""
    about, scheduler, recovery = status["runtime"], status["scheduler"], status["recovery"]
    yield InfoMetricFamily(
        "aspen_mp_runtime", "The runtime.", {"name": about["name"], "version": about["version"], "pid": str(about["pid"])}
    )
    yield _gauge("start_time_seconds", "When the runtime started, in Unix time.", about["started"])
    yield _gauge("ready", "Whether a worker runs.", float(about["ready"]))
    yield _counter("restarts", "Times that the planner process was lost and started again.", about["restarts"])
    yield from _workers(status["workers"])
    yield _gauge("max_workers", "Workers that there is room for.", about["max_workers"])
    yield _gauge("cpu_quota_cores", "CPU quota of the runtime's control group, in cores; -1: none.", status["machine"]["cpu_quota"] or -1)
    yield _labelled(GaugeMetricFamily, "instances", "Places for requests to execute in, by what they do.", "state", scheduler["instances"])
    yield _gauge("plans", "Plans that are loaded.", scheduler["plans"])
    yield _counter("worker_deaths", "Workers that have died or were ended because they hung.", recovery["worker_deaths"])
    yield _counter("worker_hangs", "Workers that hung.", recovery["hung"])
    yield _counter("workers_withdrawn", "Workers that were ended in a tile whose request had been cancelled.", recovery["withdrawn"])
    yield _counter("slow_tiles", "Tiles that took longer than 10 s.", recovery["slow_tiles"])
    yield _counter("worker_replacements", "Workers started in place of dead ones.", recovery["respawned"])
    yield _gauge("workers_lacking", "Workers that there are to be and are not yet.", recovery["lacking"])
    yield _gauge("workers_given_up", "Workers that died and are not replaced.", recovery["given_up"])
    yield _counter("recoveries", "Recoveries from workers' deaths.", recovery["recoveries"])
    yield _gauge("last_recovery_seconds", "How long the latest recovery held the workers.", recovery["last_stop_s"] or 0.0)
    yield _labelled(
        CounterMetricFamily, "recovered_requests", "Requests met by recoveries, by what became of them.", "outcome", recovery["requests"]
    )
    for what, help_ in (("bytes", "Shared memory, by what it is for."), ("segments", "Segments of shared memory, by what they are for.")):
        values = {role: entry[what] for role, entry in status["memory"].items()}
        yield _labelled(GaugeMetricFamily, f"memory_{what}", help_, "role", values)
    clients = status["clients"]
    yield _gauge("clients", "Connected clients.", len(clients))
    yield _gauge(
        "client_borrowed_bytes", "Clients' own shared memory that workers read in place.", sum(c["borrowed_bytes"] for c in clients)
    )
    yield from _models(status["models"])
    yield from _requests(status)


def _workers(workers: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    states: dict[str, int] = {}
    labels = ("worker", "cpu", "core_class")
    seconds = CounterMetricFamily("aspen_mp_worker_seconds", "Time of a worker, by what it did.", labels=[*labels, "activity"])
    requests = CounterMetricFamily("aspen_mp_worker_requests", "Requests that a worker ended, by how.", labels=[*labels, "outcome"])
    classes = {
        "held": "Time in which a worker took no tiles of lower classes, for the sake of a higher one.",
        "lent": "Time in tiles of lower classes that went before those of a higher one, as their share.",
    }
    costs = {key: CounterMetricFamily(f"aspen_mp_worker_{key}_seconds", text, labels=labels) for key, text in classes.items()}
    counts = {
        "tiles": "Tiles executed.",
        "steals": "Tiles taken from other workers' queues.",
        "opaque": "Tiles executed in Python.",
        "faults": "Tiles that failed.",
        "parks": "Times that the worker slept.",
    }
    of = {key: CounterMetricFamily(f"aspen_mp_worker_{key}", text, labels=labels) for key, text in counts.items()}
    for worker in workers:
        states[worker["process"]] = states.get(worker["process"], 0) + 1
        who = (str(worker["id"]), str(worker["cpu"]), str(worker["core_class"]))
        for activity in _ACTIVITIES:
            seconds.add_metric([*who, activity], worker.get(f"{activity}_ns", 0) / 1e9)
        failed, cancelled = worker.get("failed", 0), worker.get("cancelled", 0)
        outcomes = {"completed": worker.get("ends", 0) - failed - cancelled, "failed": failed, "cancelled": cancelled}
        for outcome, value in outcomes.items():
            requests.add_metric([*who, outcome], max(0, value))
        for key, family in of.items():
            family.add_metric(who, worker.get(key, 0))
        for key, family in costs.items():
            family.add_metric(who, worker.get(f"{key}_ns", 0) / 1e9)
    yield _labelled(GaugeMetricFamily, "workers", "Worker processes, by state.", "state", states)
    yield from (seconds, requests, *costs.values(), *of.values())


def _models(models: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    labels = ("model", "id")
    weights = GaugeMetricFamily("aspen_mp_model_weight_bytes", "Packed weights, one copy for all clients.", labels=labels)
    users = GaugeMetricFamily("aspen_mp_model_clients", "Clients that have the model loaded.", labels=labels)
    plans = GaugeMetricFamily("aspen_mp_model_plans", "Plans of the model, one for each shape and stage.", labels=labels)
    share = GaugeMetricFamily("aspen_mp_model_share", "Weight of the model where core time is short.", labels=labels)
    of = {key: CounterMetricFamily(f"aspen_mp_model_{name}", text, labels=labels) for key, (name, text) in _SCHEDULED.items()}
    made = CounterMetricFamily("aspen_mp_model_plans_made", f"Plans so far: {', '.join(_MADE.values())}.", labels=[*labels, "kind"])
    replaced = CounterMetricFamily("aspen_mp_model_plans_replaced", "Plans whose place a searched one took.", labels=labels)
    for model in models:
        who = (model["name"], str(model["id"]))
        share.add_metric(who, model["share"])
        for key, family in of.items():
            family.add_metric(who, model["scheduled"][key])
        weights.add_metric(who, model["weight_bytes"])
        users.add_metric(who, model["clients"])
        plans.add_metric(who, len(model["plans"]))
        for kind in _MADE:
            made.add_metric([*who, kind], model["made"][kind])
        replaced.add_metric(who, model["made"]["replaced"])
    yield from (weights, users, plans, share, made, replaced, *of.values())


def _requests(status: Mapping[str, Any]) -> Iterator[Metric]:
    """As clients count them: by model, with how long they took from the call to the result."""
    counts = CounterMetricFamily("aspen_mp_requests", "Requests that have ended, by model and outcome.", labels=["model", "outcome"])
    flying = GaugeMetricFamily("aspen_mp_requests_in_flight", "Requests that clients have begun, by model.", labels=["model"])
    seconds = HistogramMetricFamily("aspen_mp_request_seconds", "From the call to the result, by model.", labels=["model"])
    new = {key: CounterMetricFamily(f"aspen_mp_{name}", text, labels=["model"]) for key, (name, text) in _NEW_SHAPES.items()}
    for name, found in status["requests"].items():
        for outcome in OUTCOMES:
            counts.add_metric([name, outcome], found[outcome])
        flying.add_metric([name], found["in_flight"])
        for key, family in new.items():
            family.add_metric([name], found[key])
        seconds.add_metric([name], *_buckets(found["seconds"]))
    queue = HistogramMetricFamily("aspen_mp_queue_seconds", "From the submission of a request to a worker's beginning with it.", labels=[])
    queue.add_metric([], *_buckets(status["scheduler"]["queue_seconds"]))
    yield from (counts, flying, seconds, queue, *new.values())
    yield _gauge("queue_depth", "Requests that clients have begun and no worker has.", status["scheduler"]["queue_depth"])


def _buckets(histogram: Mapping[str, Any]) -> tuple[list[tuple[str, float]], float]:
    """A histogram of `Counts.histogram` as prometheus_client takes it: cumulative counts by upper bound, and the sum."""
    bounds = [*(repr(bound) for bound in histogram["le"]), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram["counts"])), strict=True)), histogram["sum_s"]


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"aspen_mp_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"aspen_mp_{name}", text, value=value)


def _labelled(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, text: str, label: str, values: Mapping[str, float]
) -> Metric:
    family = kind(f"aspen_mp_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


class RuntimeCollector:
    """Asks the runtime `name` at each scrape; connects when it has to, so that it may end and come again. ``aspen_mp_up`` says whether it
    answered within `ANSWER_S`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._runtime: Runtime | None = None
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield _gauge("up", "Whether the runtime answered.", float(status is not None))
        if status is not None:
            yield from families(status)

    def health(self, *, ready: bool) -> tuple[bool, str]:
        """Whether the runtime answers, or, with `ready`, serves requests; and a line for people."""
        status = self._status()
        if status is None:
            return False, f"no runtime named {self._name!r} answers"
        about = status["runtime"]
        if about["stopping"]:
            return not ready, "stopping"
        if not about["ready"]:
            return not ready, "no worker runs"
        return True, "ready"

    def _status(self) -> dict[str, Any] | None:
        until = time.monotonic() + ANSWER_S
        if not self._lock.acquire(timeout=ANSWER_S):
            return None  # another scrape waits for an answer already
        try:
            while True:
                known = self._runtime is not None
                try:
                    return self._ask(until)
                except AspenError:
                    self._forget()
                if not known or time.monotonic() >= until:  # a connection that has gone is noticed by using it
                    return None
        finally:
            self._lock.release()

    def _ask(self, until: float) -> dict[str, Any]:
        """The status. RuntimeLost where it does not come in time: a call has no end of its own, so the connection is given up."""
        if self._runtime is None:
            self._runtime = aspen_mp.connect(self._name, timeout=max(until - time.monotonic(), 0.1), retry=False)
        hang_up = threading.Timer(max(until - time.monotonic(), 0.1), self._runtime.close)
        hang_up.daemon = True
        hang_up.start()
        try:
            return self._runtime.status()
        finally:
            hang_up.cancel()

    def _forget(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()

    def close(self) -> None:
        if self._lock.acquire(timeout=ANSWER_S):  # else whoever has it ends with the process
            try:
                self._forget()
            finally:
                self._lock.release()


class Endpoint:
    """Serves a runtime's metrics over HTTP at ``/metrics`` from a thread, and its health for orchestrators. ``/healthz`` is 200 where the
    planner process answers. ``/readyz`` is 200 where requests are served besides: a worker runs, and the runtime is not stopping. Else both
    are 503.

    `port` 0: any free one; `port` then says which. OSError if it is taken.
    """

    def __init__(self, name: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self._collector = RuntimeCollector(name)
        registry = CollectorRegistry()
        registry.register(cast("Any", self._collector))
        server, thread = start_http_server(port, host, registry)
        server.set_app(self._routed(server.get_app()))
        self._server: WSGIServer = server
        self._thread: threading.Thread = thread
        self.port: int = server.server_port

    def _routed(self, metrics: Any) -> Any:
        """The application: health beside `metrics`, which prometheus_client answers."""

        def answer(environ: dict[str, Any], start: Any) -> Any:
            path = environ.get("PATH_INFO", "")
            if path in ("/", "/metrics"):
                return metrics(environ, start)
            if path not in ("/healthz", "/readyz"):
                code, text = "404 Not Found", "there are /metrics, /healthz and /readyz"
            else:
                well, text = self._collector.health(ready=path == "/readyz")
                code = "200 OK" if well else "503 Service Unavailable"
            body = f"{text}\n".encode()
            start(code, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
            return [body]

        return answer

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._collector.close()


def text(status: Mapping[str, Any]) -> str:
    """A status in Prometheus' text format."""

    class Once:
        def collect(self) -> Iterator[Metric]:
            return families(status)

    registry = CollectorRegistry()
    registry.register(cast("Any", Once()))
    written: str = generate_latest(registry).decode()
    return written
