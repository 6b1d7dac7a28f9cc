"""`Runtime`: a planner process and its workers, as a client sees them; `connect` to one that is running."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import aspen_mp
from aspen_mp import config
from aspen_mp.client import arguments, link, server
from aspen_mp.client.link import CONNECT_S, Link
from aspen_mp.client.reconnect import WAIT_S, Reconnects
from aspen_mp.client.restart import MOST_LOSSES, OwnServer, Restarts
from aspen_mp.planner.job.options import ACCURACIES, OBJECTIVES, PRECISIONS, Accuracy, Objective, Planning, Precision
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.shm.errors import AspenError, RequestError, RuntimeLost
from aspen_mp.shm.greenlets import readable
from aspen_mp.system import descriptors, processes, threads

if TYPE_CHECKING:
    import onnx

    from aspen_mp.client.model import Model
    from aspen_mp.client.session import Session
    from aspen_mp.client.trials.precisions import Wanted
    from aspen_mp.client.trials.samples import Given
    from aspen_mp.client.workload import Workload
    from aspen_mp.config import Profile
    from aspen_mp.shm.bindings._mapping import Memfd
    from aspen_mp.tracing.trace import Trace

Answer = TypeVar("Answer")
Progress = Callable[[str, int, int], None]
MOST_QUEUED: Final = 1 << 30
GRACE_S: Final = 30.0
"""How long a runtime that drains gives to what is in flight, unless somebody says otherwise."""


class Runtime:
    """A running set of workers that executes models.

    It starts a planner process and its workers, each pinned to a core. It ends with `close`, at the end of the ``with`` block, or with
    the process that started it. It also stays for as long as a model of it is referenced, so that a function may start a runtime and
    return a model alone.

    Handles of runtimes and models work in forked children and can be pickled. In another process of the same user they connect when they
    are first used. The runtime still ends with the process that started it.

    Args:
        workers: Number of workers, 1 to 256. None: one for each core that the process may use. Workers then join and leave as the
            affinity mask, the cpuset or the CPU quota change. A number that was given stays. A worker whose core is taken away moves to
            another one, or shares one where there are too few.
        cores: CPUs to pin the workers to, one for each worker.
        max_workers: Room for workers that join later. None: one for each CPU of the machine, at least 16.
        profile: What is not given here: a profile's name, the path of a TOML file, or a `aspen_mp.config.Profile`. None: the defaults.
        name: Makes the runtime reachable by `connect(name)` from other processes of this user.
        trace: The file that a trace of all the runtime's life is written to; True: ``trace.json``. See `trace`.
        log: Which events become lines on standard error: "info", all; "warning", those that nobody asked for, such as a worker's death;
            "off", none. None takes the profile's value.
        retry: Whether a planner process that is lost (killed, out of memory) is started again, with as many workers. Models are then
            loaded again from what they were loaded from, and requests in flight are submitted again from their inputs. A model that was
            loaded from bytes or a ModelProto stays in memory for that. A request fails with RuntimeLost where the runtime was lost 3
            times while workers had begun it. Everything fails so once 8 restarts in a row have lasted less than 10 s each. Handles in
            other processes do not start the runtime again.
        cancel_grace_s: Seconds that a tile may go on after its request was cancelled, timed out or lost its client. Then its worker is
            ended and replaced, and other requests go on. None takes the profile's value.
        preempt_ms: Milliseconds, 0 to 1000, for which a tile of a lower priority may keep a core from a request of a higher one. Models
            whose requests run beside a higher priority are planned again with tiles no longer than this, by the planner's estimate. Tiles
            that Python executes cannot be cut. 0: tiles are as long as is best for each model alone. None takes the profile's value.
        grace_s: Seconds that SIGTERM to the planner process gives to requests in flight; see `drain`.
        max_queued: How many requests of each client process may wait for workers; one more raises QueueFull. None: no limit.

    Raises:
        ConfigError: The profile is wrong; the message names file and key.
        ResourceLimitError: There are too few descriptors, processes or too little memory to start the runtime.
        TypeError, ValueError: An argument has a type or a value that no runtime can have.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        cores: Sequence[int] | None = None,
        max_workers: int | None = None,
        profile: str | Path | Profile | None = None,
        name: str | None = None,
        trace: bool | str | os.PathLike[str] = False,
        log: Literal["info", "warning", "off"] | None = None,
        retry: bool = False,
        cancel_grace_s: float | None = None,
        preempt_ms: float | None = None,
        grace_s: float = GRACE_S,
        max_queued: int | None = None,
    ) -> None:
        self._server: OwnServer | None
        self._life: Trace | None
        self._profile = config.load(profile)
        command = server.configuration(
            workers,
            cores=cores,
            max_workers=max_workers,
            profile=self._profile,
            name=name,
            log=log,
            cancel_grace_s=cancel_grace_s,
            preempt_ms=preempt_ms,
        )
        command["grace_s"] = arguments.grace("grace_s", grace_s)
        command["max_queued"] = 0 if max_queued is None else arguments.whole("max_queued", max_queued, 1, MOST_QUEUED)
        self._server = OwnServer(lambda restarts: server.start({**command, "restarts": restarts}), _import_requests)
        session = self._server.session()
        self._begin(Link(session.welcome.address, session, Restarts(self._server) if retry else None))
        if trace is not False:
            try:
                life = self._life = self.trace("trace.json" if trace is True else trace)
                life.start()
            except BaseException:
                self.close()
                raise

    @classmethod
    def _connect(cls, name: str, timeout: float, retry: bool, wait_s: float, max_queued: int | None) -> Runtime:
        from aspen_mp.client.session import Session
        from aspen_mp.control.wire import run_directory

        run_directory.check_name(name)
        limit = arguments.seconds("timeout", timeout)
        most = None if max_queued is None else arguments.whole("max_queued", max_queued, 1, MOST_QUEUED)
        patience = arguments.seconds("wait_s", wait_s)
        reviver = Reconnects(name, arguments.ENDLESS_S if patience is None else patience) if arguments.flag("retry", retry) else None
        self = cls.__new__(cls)
        self._server = None
        self._profile = config.load(None)
        session = Session(run_directory.connect(name), aspen_mp.__version__, limit)
        self._begin(Link(session.welcome.address, session, reviver, most))
        return self

    @classmethod
    def _restore(cls, address: str, profile: Profile, named: tuple[str, float] | None = None) -> Runtime:
        """An unpickled handle."""
        self = cls.__new__(cls)
        self._server = None
        self._profile = profile
        self._begin(link.to(address, named))
        self._unpickled = True
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Runtime._restore, (self._link.address, self._profile, self._link.travels)

    def _begin(self, way: Link) -> None:
        self._link = way
        way.holds(self)
        self._lock = threads.Lock()
        self._closed = False
        self._unpickled = False
        self._life = None  # of all that happens up to the end
        _live.add(self)

    @property
    def _session(self) -> Session:
        return self._link.session()

    @property
    def name(self) -> str:
        """The name that `connect` takes; empty for a private runtime."""
        return self._session.welcome.name

    @property
    def pid(self) -> int:
        """Process id of the planner process."""
        return self._session.welcome.pid

    def __repr__(self) -> str:
        session = self._link.latest  # as it is: to say who one is must not wait for a runtime
        who = f"{session.welcome.name or 'private'}, process {session.welcome.pid}" if session else "not connected"
        return f"<aspen_mp.Runtime {who}{', closed' if self._closed else ''}>"

    # ---- models

    def load(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto | Memfd,
        *,
        name: str | None = None,
        instances: int | None = None,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        precision: Wanted | None = None,
        winograd: bool | None = None,
        accuracy: Accuracy | None = None,
        stacks: bool = True,
        share: float = 1.0,
        objective: Objective | None = None,
        planning: Planning | None = None,
        progress: Progress | None = None,
        samples: Given | None = None,
        within: float = arguments.WITHIN,
    ) -> Model:
        """Load a model, and plan it where all its shapes are fixed.

        The same model, loaded by several clients with the same options, is held once.

        Args:
            model: The path of an ONNX file, its bytes, an `onnx.ModelProto`, or "zoo:NAME" for a network of the built-in zoo. Or a file
                in memory (`shm.bindings._mapping.Memfd`) with the bytes, which are then not copied; it is closed.
            name: What `status` and messages call it. None: the name of the file or of the graph.
            instances: How many requests of it can execute at the same time, from 1 to 32; each takes memory of its own for activations.
                None: the profile's value, or with the objective "throughput" as many as keep all cores busy.
            input_shapes: {input: shape} to plan at once, with a search for tiles. Without it, tiles are searched once the shapes have come
                often. A model with open dimensions is planned at its first request then, and so is one whose inputs are not all numbers.
            precision: "f32", as the model says. "bf16": products with constant weights (MatMul, Gemm, Conv) may round both factors to
                bf16 and sum in f32, where the processor has AVX512_BF16. Results that they read may be stored as bf16. "auto": the fastest
                of these whose error on `samples` is at most `within`. The model is loaded and measured in each, and
                `Model.precision_choice` says what was found.
            winograd: Whether algorithms of fewer multiplications may be used where they are faster: Winograd's for convolutions and
                Strassen's for products. Results differ from direct ones by rounding.
            accuracy: How much error such algorithms may add to that of direct sums: "strict", at most 1.5 times; "default", at most 4
                times; "fast", whatever is fastest. The choice follows from the weights alone.
            stacks: Whether layers that do not mix channels may run depth first, several in one kernel, where that is predicted to be
                faster. Results have the same bits either way.
            share: How much core time its requests get beside those of other models of the same priority class, when there is not enough:
                twice as much with 2.0 as with 1.0. Each client that uses a model gets this share of its own. From 0.01 to 100.
            objective: "latency": one request at a time ends as soon as possible, shared by all cores. "throughput": as many requests as
                possible are done in a time, each shared by as few cores as `instances` allow. A request alone then takes longer. Results
                have the same bits either way.
            planning: How long to search for tiles. Results have the same bits.
            progress: Called as ``progress(step, done, total)`` while the model is loaded.
            samples: Typical inputs, for the precision "auto": a folder, a file, or an iterable of {input: array}, in the forms of
                `aspen_mp.quantize`.
            within: The bound for "auto": the largest difference of an output from f32, relative to the output's largest magnitude.

        None takes the profile's value for `instances`, `precision`, `winograd`, `accuracy` and `objective`.

        Returns:
            The model, ready to run.

        Raises:
            FileNotFoundError: There is no such file.
            ModelParseError: The bytes are no ONNX model.
            ModelInvalidError: The model breaks ONNX's rules.
            UnsupportedModelError: An operator cannot be run; the message lists every such node.
            ExternalDataError: A file of the model's weights is missing or does not fit.
            ResourceLimitError: There is too little memory.
            PlanError: The planning process ended or got stuck.
            RequestError: `input_shapes` does not fit the model.
            TypeError, ValueError: An argument has a type or a value that no model could take.
        """
        from aspen_mp.client.model import Model
        from aspen_mp.client.model_source import ModelSource, where

        if precision == "auto" or samples is not None:
            alone = partial(
                self.load, model, name=name, instances=instances, input_shapes=input_shapes, winograd=winograd, accuracy=accuracy
            )
            alone = partial(alone, stacks=stacks, share=share, objective=objective, planning=planning, progress=progress)
            return _of_samples(model, precision, samples, within, lambda each: alone(precision=each))
        self._session.sweep()
        defaults = self._profile.models
        name = None if name is None else arguments.text("name", name)
        objective = arguments.one_of("objective", defaults.objective if objective is None else objective, OBJECTIVES)
        instances = self._instances(instances, objective)
        precision = arguments.one_of("precision", defaults.precision if precision is None else precision, PRECISIONS)
        winograd = arguments.flag("winograd", defaults.winograd if winograd is None else winograd)
        accuracy = arguments.one_of("accuracy", defaults.accuracy if accuracy is None else accuracy, ACCURACIES)
        shapes = None if input_shapes is None else arguments.shapes("input_shapes", input_shapes)
        stacks = arguments.flag("stacks", stacks)
        share = arguments.share("share", share)
        planning = Planning() if planning is None else planning
        if not isinstance(planning, Planning):
            raise TypeError(f"planning must be an aspen_mp.planner.job.options.Planning, not {planning!r} ({type(planning).__name__})")
        if progress is not None and not callable(progress):
            raise TypeError(f"progress must be a function (step, done, total), not {progress!r} ({type(progress).__name__})")
        path, data, label = where(model)
        request = PlanRequest(precision, winograd, accuracy, planning.checked(stacks=stacks), objective, instances)
        source = ModelSource(path, data, name or label, request, share, keep=self._link.revives)
        del data
        losses = 0
        while True:
            try:
                session = self._session
                loaded = source.load(session, progress)
                result = Model(self._link, loaded, name, place=session, source=source if self._link.revives else None, runtime=self)
                return self._prepared(result, shapes, progress)
            except RuntimeLost as lost:
                losses += 1
                if lost.wait_s is not None or losses >= MOST_LOSSES or not self._link.revives:
                    raise

    def _instances(self, wanted: int | None, objective: Objective) -> int | None:
        """How many to ask for; None: as many as the objective needs."""
        if wanted is None and objective == "throughput":
            return None
        return arguments.whole("instances", self._profile.models.instances if wanted is None else wanted, 1, arguments.MOST_INSTANCES)

    def _prepared(self, result: Model, input_shapes: Mapping[str, tuple[int, ...]] | None, progress: Progress | None) -> Model:
        """Planned as far as shapes are known; given back where that fails."""
        shapes = {info.name: info.shape for info in result.inputs if info.kind == "tensor" and not info.optional}
        shapes.update(input_shapes or {})
        fixed = {key: shape for key, shape in shapes.items() if shape is not None and all(isinstance(d, int) for d in shape)}
        try:
            result.check_names(input_shapes or ())
            if len(fixed) == len(shapes) and all(info.kind == "tensor" and not info.dtype.hasobject for info in result.inputs):
                result._plan(fixed, progress, ahead=input_shapes is not None)  # type: ignore[arg-type]
            elif input_shapes is not None and (missing := ", ".join(sorted(set(shapes) - set(fixed)))):
                raise RequestError(f"model {result.name!r}: input_shapes does not say all dimensions of {missing}. Give every one")
        except BaseException:
            with contextlib.suppress(AspenError):
                result.unload()
            raise
        return result

    # ---- workers

    def workload(self, *, objective: Objective = "latency", schedule: bool = False) -> Workload:
        """Describe networks that run together: periodic sources, and networks behind or beside others.

        Args:
            objective: "latency": a source sends a request when the one before has ended. "throughput": it sends the next one before,
                which fills cores that the first one leaves idle and takes longer.
            schedule: Whether the runtime looks for a schedule of all such workloads that run, follows it, and reverts one that does harm.
                A short network may take longer by it, so that the longest one takes less.

        Returns:
            An empty workload.

        Raises:
            ValueError: There is no such objective.
        """
        from aspen_mp.client.workload import Workload

        return Workload(self.load, objective, self._link.session if schedule else None)

    def add_workers(self, n: int | None = None, *, cores: Sequence[int] | None = None) -> int:
        """Let workers join while requests run.

        Args:
            n: How many. None: one, or one for each of `cores`.
            cores: CPUs to pin them to. None: those that a new runtime would choose next.

        Returns:
            How many workers there are now.

        Raises:
            ResourceLimitError: `max_workers` would be exceeded; the message says how to raise it.
        """
        count, cpus = server.workers_asked(n, cores)
        return self._resize(add=count, cores=cpus)

    def remove_workers(self, n: int | None = None, *, cores: Sequence[int] | None = None) -> int:
        """Let workers leave while requests run. Each finishes the tile in hand, and others take the rest.

        Without any worker, requests wait.

        Args:
            n: How many; the newest leave first. None: one, or one for each of `cores`.
            cores: CPUs whose workers leave.

        Returns:
            How many workers there are now.

        Raises:
            RequestError: There are fewer workers, or none on one of `cores`.
        """
        count, cpus = server.workers_asked(n, cores)
        return self._resize(remove=count, cores=cpus)

    def scale(self, total: int | None) -> int:
        """Let workers join or leave until there are as many as `total`.

        Args:
            total: How many workers; with 0, requests wait. None: as many as the machine is good for, now and whenever that changes.

        Returns:
            How many workers there are now.

        Raises:
            ResourceLimitError: `max_workers` would be exceeded.
        """
        from aspen_mp.control.wire.protocol import AUTOMATIC

        return self._resize(total=AUTOMATIC if total is None else arguments.whole("total", total, 0, arguments.MOST_WORKERS))

    def _resize(self, add: int = 0, remove: int = 0, total: int = -1, cores: list[int] | None = None) -> int:
        n = self._ask(lambda session: session.resize(add, remove, total, cores or []))
        if self._server is not None:
            self._server.total = total if total < 0 and not (add or remove) else n
        return n

    @property
    def workers(self) -> list[dict[str, Any]]:
        """One dict for each worker: `id`, `pid`, `cpu`, `core_class`, `state`, `tiles`, `steals`, `busy_s` and more.

        - `busy_s` is wall time in kernels and in scheduling, in seconds.
        - `kernel_ns`, `schedule_ns`, `search_ns` (looking for work) and `sleep_ns` are nanoseconds since the worker joined.
        - `held_ns` is the part of the last two for which it took no tiles of lower classes, for the sake of a higher one. `lent_ns` is time
          in tiles of lower classes that went before those of a higher one, as their share.
        - `overhead` is the share of scheduling in `busy_s`.
        - `pace` is the time that kernels take on its core, divided by the time that plans expect. It is None until it is known.

        The end of a request may wake its client on the worker's own core, and then counts as that worker's time.
        """
        workers: list[dict[str, Any]] = self.status()["workers"]
        return workers

    def status(self) -> dict[str, Any]:
        """Return the state of runtime, workers, models, plans, clients, memory and counters, as plain dicts and lists.

        `aspen-mp status --json` prints the same. Times are in seconds, or in nanoseconds where the key ends in ``_ns``; sizes are in
        bytes.
        """
        self._session.sweep()
        return self._ask(lambda session: session.status())

    def trace(self, path: str | os.PathLike[str] | None = None, *, records: int = 0) -> Trace:
        """Return a trace of what every worker does, from the beginning of a ``with`` block to its end::

            with runtime.trace("trace.json") as trace:
                model.run(feeds)
            print(trace.text())

        Requests of all clients are in it. A runtime has one trace at a time.

        Args:
            path: Where the trace is written at the end, as Chrome's trace event JSON, for ui.perfetto.dev. A name that ends in ".gz" is
                packed. None: nowhere, unless `Trace.write` is called.
            records: How many records each worker keeps: one for each tile and one or two for each gap. The oldest are overwritten, and
                `Trace.lost` counts them. 0: some hundred thousand.

        Raises:
            RequestError: Somebody else traces the runtime; raised when the trace begins.
        """
        from aspen_mp.tracing.trace import Trace

        return Trace(self._link.session, path, arguments.whole("records", records, 0, arguments.MOST_RECORDS))

    def _ask(self, question: Callable[[Session], Answer]) -> Answer:
        """Asks again where the runtime is lost meanwhile and started again: the new one knows nothing of the question."""
        losses = 0
        while True:
            try:
                return question(self._session)
            except RuntimeLost as lost:
                losses += 1
                if lost.wait_s is not None or losses >= MOST_LOSSES or not self._link.revives:
                    raise

    def revive(self, models: Iterable[Model] = ()) -> None:
        """Start a lost runtime again (``retry=True``), or find the next one of its name, and load models again now.

        Without this call, both happen at the next use.

        Args:
            models: Models to load again.

        Raises:
            RuntimeLost: There is no other runtime.
        """
        self._ask(lambda session: session.status())
        for model in models:
            model.revive()

    @property
    def in_flight(self) -> int:
        """Of a runtime's handle itself nothing is."""
        return 0

    # ---- the end

    @property
    def closed(self) -> bool:
        """Whether this handle is of no more use: it was closed, or its planner process is gone."""
        return self._closed or self._link.lost

    @property
    def own_pid(self) -> int:
        """Process id of the planner process that this object started last, whether it still lives or not; 0 where it started none."""
        return 0 if self._server is None else self._server.pid

    def wait(self, fd: int = -1, timeout: float | None = None) -> None:
        """Sleep until the runtime has ended, `fd` is readable, or `timeout` seconds have passed.

        A runtime that is lost has ended, even if the next use would start it again.

        Args:
            fd: A file descriptor to wait for, too. -1: none.
            timeout: Seconds. None: no limit.
        """
        session = self._link.latest
        pid = self.own_pid or (session.welcome.pid if session is not None else self.pid)
        try:
            pidfd = processes.pidfd_open(pid)
        except (ProcessLookupError, ValueError):
            return
        try:
            readable([pidfd, fd] if fd >= 0 else [pidfd], None if timeout is None else max(0.0, timeout))
        finally:
            descriptors.close(pidfd)

    def stop(self, *, drain: bool = False, grace_s: float = GRACE_S) -> None:
        """End the runtime for everybody who uses it, and close this handle.

        Args:
            drain: Whether requests in flight end first; see `drain`. The call then waits for them.
            grace_s: Seconds that they are given.
        """
        if drain:
            self.drain(grace_s)
            self.wait()
        else:
            with contextlib.suppress(RuntimeLost):
                self._present().stop()
        self.close()

    def drain(self, grace_s: float = GRACE_S) -> None:
        """Have the runtime finish what is in flight and then end. Return at once.

        From now on, new requests, loads and clients get RuntimeStopping. Handles from `connect(retry=True)` wait for the next runtime of
        the name instead.

        Args:
            grace_s: Seconds after which the runtime ends in any case.
        """
        grace = arguments.seconds("grace_s", grace_s)
        with contextlib.suppress(RuntimeLost):
            self._present().drain(arguments.ENDLESS_S if grace is None else grace)

    def _present(self) -> Session:
        """The session with the runtime that is there now; not of one that would have to be started, or waited for, to be stopped."""
        session = self._link.latest
        return session if session is not None else self._session

    def close(self) -> None:
        """Close the handle. A runtime that this object started ends, and requests in flight fail with RuntimeLost.

        Raises:
            OSError: The trace of all its life could not be written. Everything has been closed nevertheless.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _live.discard(self)
        try:
            if self._life is not None:
                self._life.stop()
        finally:
            self._link.close()
            if self._server is not None:
                self._server.end()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if value is None:
            self.close()
            return
        with contextlib.suppress(AspenError, OSError):  # what went wrong in the block matters more
            self.close()

    def __del__(self) -> None:
        # Other unpickled handles of this process may go the same way to the runtime: it ends with the last of them.
        if hasattr(self, "_lock") and not self._unpickled:
            self.close()

    def forked(self) -> None:
        """What the parent started is the parent's to end; this handle connects anew when it is used."""
        self._server = None
        self._life = None
        self._lock = threads.Lock()


def _of_samples(model: object, precision: Wanted | None, samples: Given | None, within: float, load: Callable[[Precision], Model]) -> Model:
    """The model in the precision that samples choose; `load` loads it in one."""
    from aspen_mp.client.trials import precisions
    from aspen_mp.shm.bindings._mapping import Memfd

    if precision != "auto" or samples is None:
        raise ValueError('samples= and precision="auto" need each other. Give both, or neither')
    if isinstance(model, Memfd):
        raise ValueError('precision="auto" loads the model several times, and a Memfd once. Give a path, bytes or a ModelProto')
    return precisions.fastest(load, samples, arguments.bound("within", within))


def connect(
    name: str = "default",
    *,
    timeout: float = CONNECT_S,
    retry: bool = True,
    wait_s: float = WAIT_S,
    max_queued: int | None = None,
) -> Runtime:
    """Connect to the runtime that was started with this name (`aspen-mp launch`, or ``Runtime(name=…)``) by the same user.

    Args:
        name: The runtime's name: 1 to 64 letters, digits, "_", "." or "-", the first a letter or digit.
        timeout: Seconds to wait for its answer.
        retry: Whether handles go on with the next runtime of that name when it is lost or stops. Models are loaded again from what they
            were loaded from when they are next used, and requests in flight are submitted again from their inputs. A file that has
            changed since is not loaded again. A model that was loaded from bytes or a ModelProto stays in this process's memory for that,
            and its pickled handles cannot load it again.
        wait_s: Seconds that requests wait for the next runtime. Later ones fail at once with RuntimeLost, until it is there. A request
            also fails so where the runtime was lost 3 times while workers had begun it.
        max_queued: How many requests of this process may wait for workers; one more raises QueueFull. The runtime may have a lower limit.

    Returns:
        A handle of the runtime, which goes on when the handle is closed.

    Raises:
        RuntimeNotFound: No runtime has that name.
        ProtocolError: It is of another build or of another user.
        RuntimeStopping: It is about to end.
        RuntimeLost: It does not answer in time.
    """
    return Runtime._connect(name, timeout, retry, wait_s, max_queued)


def _import_requests() -> None:
    """What requests need, so that the first one does not wait for it."""
    import aspen_mp.client.model  # noqa: F401


# ---- processes that end or fork

_live: weakref.WeakSet[Runtime] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for runtime in list(_live):
        try:
            runtime.close()
        except Exception as error:  # of a trace's file: the others have to be closed all the same
            sys.excepthook(type(error), error, error.__traceback__)
