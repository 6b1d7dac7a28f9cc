"""Networks that run together: periodic sources, networks behind or beside others (HaX-CoNN, section 5.1)."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from aspen_mp.client import arguments
from aspen_mp.client.model_source import where
from aspen_mp.client.streams.tolerance import checked
from aspen_mp.shm.errors import AspenError, DeadlineMissed, RequestError, RuntimeLost
from aspen_mp.shm.scarcity import start_thread
from aspen_mp.system import clock, filesystem, threads

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx

    from aspen_mp.client.model import Model
    from aspen_mp.client.session import Session
    from aspen_mp.client.streams.model_stream import ModelStream

Results = Mapping[str, "npt.NDArray[Any]"]
Feeds = Callable[[], Mapping[str, Any]] | Iterable[Mapping[str, Any]]
Objective = Literal["latency", "throughput"]
OBJECTIVES: Final = ("latency", "throughput")
IN_FLIGHT: Final = {"latency": 1, "throughput": 2}
"""Requests of a pipeline that run at a time: a second one fills what the first one leaves idle, and delays it."""
STREAMED: Final = ("tol", "noise", "layer_tol", "refresh", "same_bits", "memory")
"""Arguments of `Model.stream`."""
USERS_S: Final = 2.0
"""Seconds that `Workload.stop` gives a call of `feeds` or `on_result` to return."""
_KEPT: Final = 1000
"""Latest latencies, of which `status` gives quantiles."""


class Network:
    """A network of a workload, as `Workload.add` returns it. `name`: what inputs and outputs of it begin with."""

    def __init__(self, workload: Workload, name: str, entry: dict[str, Any], on_result: Callable[[Results], object] | None) -> None:
        self.name = name
        self._workload = workload
        self._entry = entry
        self._on_result = on_result

    def __repr__(self) -> str:
        return f"<Network {self.name!r}>"


class _Frame:
    """A frame of a stream that runs when somebody asks for its results. It stands for a future."""

    def __init__(self, result: Callable[[], Results]) -> None:
        self.result = result

    def cancel(self) -> None:
        """Nothing has begun."""


class _Pipeline:
    """A source and all that is behind or beside it: one model, whose requests one thread sends."""

    def __init__(
        self,
        source: Network,
        every_s: float | None,
        feeds: Feeds | None,
        urgency: dict[str, Any],
        share: float,
        streamed: dict[str, Any] | None,
    ) -> None:
        """`urgency`: arguments of `Model.submit`. `streamed`: those of `Model.stream`; None: without a stream. `asked`: the
        runtime that was last asked for a schedule of its model."""
        self.source = source
        self.urgency = urgency
        self.share = share
        self.streamed = streamed
        self.stream: ModelStream | None = None
        self.every_s = every_s
        self.feeds = feeds
        self.networks = [source]
        self.model: Model | None = None
        self.error: BaseException | None = None
        self.thread: threads.Thread | None = None
        self.runs = False
        self.calls = False
        """Whether its thread is in a function of the user's."""
        self.asked = ""
        self.counts = {"requests": 0, "results": 0, "skipped": 0, "late": 0, "missed": 0}
        self.latencies: deque[float] = deque(maxlen=_KEPT)
        self.lock = threads.Lock()
        self.began = self.ended = 0.0

    def named(self, model: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays by the names of the whole: a plain name is an input of the source."""
        if not isinstance(feeds, Mapping):
            raise TypeError(f"feeds of network {self.source.name!r} must give dicts {{input: array}}, not {type(feeds).__name__}")
        known = {info.name for info in model.inputs}
        return {name if name in known else f"{self.source.name}.{name}": array for name, array in feeds.items()}

    def load(self, model: Model) -> None:
        """Take the model, and begin a stream of it if requests are frames."""
        self.model = model
        if self.streamed is not None:
            told = dict(self.streamed)
            if isinstance(told.get("tol"), Mapping):
                told["tol"] = self.named(model, told["tol"])
            self.stream = model.stream(**told)

    def unload(self) -> None:
        """Give model and stream back, if there are any."""
        stream, model, self.stream, self.model = self.stream, self.model, None, None
        if stream is not None:
            stream.close()
        if model is not None:
            model.unload()

    def run(self, model: Model, feeds: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """The results of a request, or of the next frame."""
        return (self.stream or model).run(self.named(model, feeds), **self.urgency)

    def submit(self, model: Model, feeds: Mapping[str, Any], *, alone: bool) -> Any:
        """The future of a request. `alone`: its results are asked for before anybody changes the inputs."""
        if self.stream is None:
            return model.submit(self.named(model, feeds), copy=not alone, **self.urgency)
        if alone:
            return _Frame(lambda: self.run(model, feeds))
        return self.stream.submit(self.named(model, feeds), **self.urgency)

    def deliver(self, results: Results) -> None:
        """Each network's results to who wants them, by their own names."""
        for network in self.networks:
            if network._on_result is not None:
                begin = network.name + "."
                network._on_result({name.removeprefix(begin): array for name, array in results.items() if name.startswith(begin)})

    def description(self) -> dict[str, Any]:
        """For `Workload.status`."""
        with self.lock:
            counts, latencies, running_s = dict(self.counts), list(self.latencies), self.ended - self.began
        frame = None if self.stream is None else self.stream.last
        p50, p99 = (float(np.quantile(latencies, q)) if latencies else None for q in (0.5, 0.99))
        return {
            "networks": [network.name for network in self.networks],
            "every_ms": None if self.every_s is None else self.every_s * 1e3,
            **counts,
            "per_s": counts["results"] / running_s if running_s > 0 else 0.0,
            "p50_ms": p50,
            "p99_ms": p99,
            "error": None if self.error is None else str(self.error),
            "frame": None if frame is None else dataclasses.asdict(frame),
        }


class Workload:
    """Networks that run together, as `Runtime.workload` makes it.

    A network added without `after` and `beside` is a *source*. A source and all networks behind or beside it form a *pipeline*, which runs
    as one model. Inputs that several of its networks read exist once. What one network gives another is not copied, and no network waits
    for more of another than it reads. Each pipeline has a thread, which takes inputs, sends requests and hands out results.
    """

    def __init__(self, load: Callable[..., Model], objective: Objective, session: Callable[[], Session] | None = None) -> None:
        """`load`: that of the runtime; `session`: leads to it. None: the workload follows no schedule."""
        self._load = load
        self._session = session
        self._scheduled: tuple[Session, int] | None = None
        self._asking = threads.Lock()
        arguments.one_of("objective", objective, OBJECTIVES)
        self._objective: Objective = objective
        self._networks: dict[str, Network] = {}
        self._pipelines: dict[str, _Pipeline] = {}
        self._folder: str | None = None
        self._stopping = threads.Event()
        self._started = False
        self._changed = threads.Condition()
        """Guards `runs` and `calls` of pipelines."""

    # ---- describing

    def add(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto,
        *,
        name: str | None = None,
        every_ms: float | None = None,
        feeds: Feeds | None = None,
        priority: str = "normal",
        deadline_ms: float | None = None,
        share: float = 1.0,
        stream: bool | Mapping[str, Any] = False,
        after: Network | None = None,
        beside: Network | None = None,
        inputs: Mapping[str, str] | None = None,
        on_result: Callable[[Results], object] | None = None,
    ) -> Network:
        """Add a network.

        Args:
            model: As of `Runtime.load`.
            name: What the network is called; letters, digits and underscores. None: the name of its file.
            every_ms: Of a source: milliseconds between its requests. None: the next one is sent as soon as a result is there.
            feeds: Of a source: a function that returns {input: array} for a request, or an iterable of such dicts, whose end ends the
                pipeline. Inputs of other networks of the pipeline are called NETWORK.INPUT. None: `run` sends the requests.
            priority: Of a source: the class of its requests, as of `Model.run`.
            deadline_ms: Of a source: when results are needed, in milliseconds from the time of each request. A request that cannot keep to
                it is dropped and counted.
            share: Of a source: as of `Runtime.load`.
            stream: Of a source: whether its requests are the frames of a `Model.stream`. Then of each only what changed since the one
                before runs, in all networks of the pipeline, one frame after the other. A dict has arguments of `Model.stream`.
            after: A network whose outputs this one reads.
            beside: A network whose inputs this one reads, too.
            inputs: {input: "NETWORK.TENSOR"}: which output or input of another network of the pipeline an input is. Inputs that are not
                named here are found by name among those of `after` and `beside`.
            on_result: Called with {output: array} of this network for each request, in the pipeline's thread.

        Returns:
            The network, to be named by `after` and `beside` of others.

        Raises:
            ValueError: A name that is taken or has other characters, or something of a source that is said of another network.
            TypeError, ValueError: `stream` has a name or a value that `Model.stream` does not take.
            RequestError: The workload has been started or stopped.
        """
        self._refuse_if_stopped()
        if self._folder is not None:
            raise RequestError("a workload that has been started cannot grow. Make another one beside it")
        path, data, label = where(model)
        name = _valid(name or "".join(c if c.isalnum() else "_" for c in label), self._networks)
        links = {arguments.text("an input", own): arguments.text("its source", link) for own, link in (inputs or {}).items()}
        entry: dict[str, Any] = {"model": path or data, "inputs": links}
        for relation, other in (("after", after), ("beside", beside)):
            if other is not None:
                if not isinstance(other, Network) or other._workload is not self:
                    raise ValueError(f"{relation} must be a network that `add` of this workload returned, not {other!r}")
                entry[relation] = other.name
        network = Network(self, name, entry, on_result)
        urgency = {"priority": priority} if deadline_ms is None else {"priority": priority, "deadline_ms": deadline_ms}
        if after is None and beside is None:
            self._pipelines[name] = _Pipeline(network, _period(every_ms), feeds, urgency, share, _streamed(stream))
        elif every_ms is not None or feeds is not None or urgency != {"priority": "normal"} or share != 1.0 or stream is not False:
            raise ValueError(
                f"network {name!r} runs when its source does: every_ms, feeds, priority, deadline_ms, share and stream belong to a network "
                "without after and beside"
            )
        else:
            pipelines = {self._pipeline_of(other).source.name: other for other in (after, beside) if other is not None}
            if len(pipelines) > 1:
                raise ValueError(f"network {name!r} belongs to two pipelines, those of {' and '.join(map(repr, pipelines))}")
            self._pipelines[next(iter(pipelines))].networks.append(network)
        self._networks[name] = network
        return network

    def _pipeline_of(self, network: Network) -> _Pipeline:
        return next(pipeline for pipeline in self._pipelines.values() if network in pipeline.networks)

    # ---- running

    def load(self) -> None:
        """Load and plan all pipelines, which `start` and `run` do otherwise.

        Raises:
            RequestError: There is no network, or the workload has been stopped.
            AspenError: What `Runtime.load` raises; ModelInvalidError where networks do not fit each other.
        """
        self._refuse_if_stopped()
        if self._folder is not None:
            return
        if not self._pipelines:
            raise RequestError("the workload has no network. Add one first")
        self._folder = filesystem.mkdtemp("aspen-mp-workload-")
        try:
            for source, pipeline in self._pipelines.items():
                path = self._written(self._folder, source, pipeline)
                name = ", ".join(network.name for network in pipeline.networks)
                pipeline.load(self._load(path, name=name, **self._how(), share=pipeline.share))
        except BaseException:
            self.stop()
            raise

    def _refuse_if_stopped(self) -> None:
        if self._stopping.is_set():
            raise RequestError("the workload has been stopped. Make another one with Runtime.workload")

    def _how(self) -> dict[str, Any]:
        """How its models are loaded."""
        return {"instances": IN_FLIGHT[self._objective], "objective": self._objective}

    def _written(self, folder: str, source: str, pipeline: _Pipeline) -> str:
        """The file that describes a pipeline. Models that are no files get one beside it."""
        networks: dict[str, Any] = {}
        for network in pipeline.networks:
            entry = dict(network._entry)
            if isinstance(entry["model"], bytes):
                with filesystem.open(Path(folder, f"{network.name}.onnx"), "wb") as file:
                    file.write(entry["model"])
                entry["model"] = f"{network.name}.onnx"
            networks[network.name] = entry
        path = Path(folder, f"{source}.networks")
        with filesystem.open(path, "w", encoding="utf-8") as text:
            text.write(json.dumps({"networks": networks}))
        return str(path)

    def start(self) -> None:
        """Load what is not loaded, and begin to send the requests of every source that has `feeds`.

        Raises:
            RequestError: The workload was started before or has been stopped, or no source has `feeds`.
            AspenError: As of `load`.
        """
        self._refuse_if_stopped()
        if self._started:
            raise RequestError("the workload has been started already")
        if all(pipeline.feeds is None for pipeline in self._pipelines.values()):
            raise RequestError("no source of the workload has feeds. Give `add` feeds=…, or send requests with `run`")
        self.load()
        self._started = True
        for pipeline in self._pipelines.values():
            pipeline.runs = pipeline.feeds is not None
        self._ask_for_schedule()
        try:
            for pipeline in self._pipelines.values():
                if pipeline.feeds is not None:
                    name = f"aspen-mp {pipeline.source.name}"
                    thread = threads.Thread(target=self._drive, args=(pipeline,), name=name, daemon=True)
                    start_thread(thread)
                    pipeline.thread = thread
        except BaseException:
            for pipeline in self._pipelines.values():
                pipeline.runs &= pipeline.thread is not None
            raise

    def _ask_for_schedule(self) -> None:
        """The planner process looks for a schedule of the pipelines that run, and workers follow it, until others do."""
        if self._session is None:
            return
        with self._asking, suppress(AspenError):  # it runs without one
            before, self._scheduled = self._scheduled, None
            if before is not None and not before[0].lost:
                before[0].run_apart(before[1])
            models = [each.model for each in self._pipelines.values() if each.runs and each.model is not None]
            if not models or self._stopping.is_set():
                return
            for pipeline in self._pipelines.values():
                pipeline.asked = pipeline.model.home if pipeline.model is not None else ""
            session = self._session()
            numbers = [model.number for model in models if model.home == session.welcome.address]
            if numbers:
                self._scheduled = session, session.run_together(numbers, self._objective)

    def _schedule(self) -> dict[str, Any] | None:
        """What the runtime says of the schedule; None where there is none."""
        scheduled = self._scheduled
        if scheduled is None or scheduled[0].lost:
            return None
        session, number = scheduled
        with suppress(RuntimeLost):
            found: dict[str, Any] | None = session.status()["schedule"]
            return found if found is not None and number in found["numbers"] else None
        return None

    def run(self, source: Network, feeds: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Run a pipeline once.

        Args:
            source: The source of the pipeline.
            feeds: {input: array}, as of `add`.

        Returns:
            {NETWORK.OUTPUT: array}, of all networks of the pipeline.

        Raises:
            RequestError: An input is missing or does not fit, `source` is no source of this workload, or the workload has been stopped.
            AspenError: As of `load` and `Model.run`.
        """
        pipeline = self._pipelines.get(source.name)
        if pipeline is None or pipeline.source is not source:
            raise RequestError(f"network {source.name!r} is no source of this workload")
        self.load()
        return pipeline.run(self._model_of(pipeline), feeds)

    def _model_of(self, pipeline: _Pipeline) -> Model:
        model = pipeline.model
        if model is None:
            self._refuse_if_stopped()
            raise RequestError("another thread loads the workload. Load it before you run it")
        return model

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every pipeline has come to the end of its feeds, or one has failed.

        Args:
            timeout: Seconds. None: without limit.

        Returns:
            Whether all have.

        Raises:
            BaseException: What ended a pipeline early: an error of a request, of `feeds` or of `on_result`. The others go on.
            RequestError: It was called by `feeds` or `on_result`.
        """
        if threads.current_thread() in self._threads():
            raise RequestError("feeds and on_result cannot wait for the workload that calls them. Call wait in another thread")

        def over() -> bool:
            return self._failed() is not None or not any(pipeline.runs for pipeline in self._pipelines.values())

        with self._changed:
            ended = self._changed.wait_for(over, timeout)
        error = self._failed()
        if error is not None:
            raise error
        return ended

    def _failed(self) -> BaseException | None:
        return next((pipeline.error for pipeline in self._pipelines.values() if pipeline.error is not None), None)

    def _threads(self) -> list[threads.Thread]:
        return [pipeline.thread for pipeline in self._pipelines.values() if pipeline.thread is not None]

    def status(self) -> list[dict[str, Any]]:
        """Say what every pipeline has done.

        Returns:
            For each: `networks`, `every_ms`, `requests` and `results` so far, `skipped` (times at which the request before was still
            running), `late` (results that came after the next period had begun), `missed` (requests dropped because of their deadline),
            `per_s` (results a second), `p50_ms` and `p99_ms` (of the latest latencies, from when the request was due), `error`, `frame`
            (how much of the latest frame of a stream ran: the fields of `FrameReport`; None before the first frame, and without a stream),
            and `schedule`: as in `Runtime.status`, the same for all, or None where the workload is not running or asks for no schedule.
        """
        schedule = self._schedule()
        return [{**pipeline.description(), "schedule": schedule} for pipeline in self._pipelines.values()]

    def stop(self) -> None:
        """End all pipelines, once their requests in flight have ended, and unload their models.

        Called by `feeds` or `on_result`, it only ends the pipelines. Call it outside them as well, to unload the models. If a call of
        `feeds` or `on_result` does not return within 2 s, its pipeline ends when it does. This method does not wait for that.
        """
        self._stopping.set()
        if threads.current_thread() in self._threads():
            return
        left = USERS_S
        for pipeline in self._pipelines.values():
            left = self._until_ended(pipeline, left)
        self._ask_for_schedule()
        for pipeline in self._pipelines.values():
            pipeline.unload()
        if self._folder is not None:
            filesystem.rmtree(self._folder, ignore_errors=True)

    def _until_ended(self, pipeline: _Pipeline, left: float) -> float:
        """Wait for a pipeline that is told to end. Its user's functions have `left` seconds, of which it returns the rest."""
        with self._changed:
            while pipeline.runs:
                if not pipeline.calls:
                    self._changed.wait_for(lambda: pipeline.calls or not pipeline.runs)
                    continue
                began = clock.monotonic()
                returned = self._changed.wait_for(lambda: not pipeline.calls or not pipeline.runs, left)
                left = max(0.0, left - (clock.monotonic() - began))
                if not returned:
                    return 0.0
        if pipeline.thread is not None:
            pipeline.thread.join()
        return left

    def __enter__(self) -> Workload:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    # ---- the thread of a pipeline

    def _drive(self, pipeline: _Pipeline) -> None:
        """Sends a pipeline's requests. What goes wrong ends this pipeline, and no other."""
        waiting: deque[tuple[float, Any]] = deque()
        pipeline.began = pipeline.ended = clock.monotonic()
        try:
            for due, feeds in self._due(pipeline):
                while len(waiting) >= IN_FLIGHT[self._objective]:
                    self._take(pipeline, *waiting.popleft())
                if self._stopping.is_set():  # the model may be gone: results were handed out meanwhile
                    break
                model = self._model_of(pipeline)
                with pipeline.lock:
                    pipeline.counts["requests"] += 1
                alone = IN_FLIGHT[self._objective] == 1  # nobody changes the inputs before the result is there
                waiting.append((due, pipeline.submit(model, feeds, alone=alone)))
                if alone:
                    self._take(pipeline, *waiting.popleft())
            while waiting:
                self._take(pipeline, *waiting.popleft())
        except BaseException as error:
            pipeline.error = error
            for _, future in waiting:
                future.cancel()
        with self._changed:
            pipeline.runs = False
            self._changed.notify_all()
        if not self._stopping.is_set():
            self._ask_for_schedule()  # of those that go on

    @contextmanager
    def _calling(self, pipeline: _Pipeline) -> Iterator[None]:
        """A call of a function of the user's, which may never return."""
        with self._changed:
            pipeline.calls = True
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                pipeline.calls = False
                self._changed.notify_all()

    def _take(self, pipeline: _Pipeline, due: float, future: Any) -> None:
        try:
            results = future.result()
        except DeadlineMissed:
            with pipeline.lock:
                pipeline.counts["missed"] += 1
            return
        with pipeline.lock:
            pipeline.ended = clock.monotonic()
            took = pipeline.ended - due
            pipeline.counts["results"] += 1
            pipeline.counts["late"] += pipeline.every_s is not None and took > pipeline.every_s
            pipeline.latencies.append(took * 1e3)
        model = pipeline.model
        if self._session is not None and model is not None and pipeline.asked != model.home:
            self._ask_for_schedule()  # of a runtime that has taken the place of one that was lost
        with self._calling(pipeline):
            pipeline.deliver(results)

    def _due(self, pipeline: _Pipeline) -> Iterator[tuple[float, Mapping[str, Any]]]:
        """When each request is due, once it is, and its inputs. Times that have passed meanwhile are skipped."""
        feeds = pipeline.feeds
        assert feeds is not None
        items = iter(feeds, None) if callable(feeds) else iter(feeds)
        due = clock.monotonic()
        while not self._stopping.is_set():
            now = clock.monotonic()
            if pipeline.every_s is not None:
                missed = int((now - due) / pipeline.every_s) if now > due else 0
                with pipeline.lock:
                    pipeline.counts["skipped"] += missed
                due += missed * pipeline.every_s
                if self._stopping.wait(max(0.0, due - now)):
                    return
            else:
                due = now
            with self._calling(pipeline):
                item = next(items, None)
            if item is None or self._stopping.is_set():
                return
            yield due, item
            if pipeline.every_s is not None:
                due += pipeline.every_s


def _valid(name: str, taken: Mapping[str, Network]) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"a network's name must have letters, digits and underscores only and begin with no digit, not {name!r}")
    if name in taken:
        raise ValueError(f"the workload has a network {name!r} already. Give this one another name")
    return name


def _streamed(stream: bool | Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of `Model.stream`, checked as far as no model is needed; None: no stream."""
    if isinstance(stream, bool):
        return {} if stream else None
    if not isinstance(stream, Mapping):
        raise TypeError(f"stream must be True, False or a dict of arguments of Model.stream, not {type(stream).__name__}")
    if strange := [name for name in stream if name not in STREAMED]:
        raise ValueError(f"stream has {strange[0]!r}, which Model.stream does not take. It takes {', '.join(STREAMED)}")
    checked(**{name: value for name, value in stream.items() if name != "memory"})
    return dict(stream)


def _period(every_ms: float | None) -> float | None:
    seconds = arguments.seconds("every_ms", every_ms)
    if seconds is not None and seconds <= 0:
        raise ValueError(f"every_ms must be more than 0, not {every_ms}")
    return None if seconds is None else seconds / 1e3
