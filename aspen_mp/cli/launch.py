"""`aspen-mp launch`: a named runtime, in the foreground until Ctrl-C or `stop`, or in the background with --detach."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aspen_mp import errors
from aspen_mp.cli import options, output, sources
from aspen_mp.cli.options import GRACE_S
from aspen_mp.client.arguments import MOST_PREEMPT_MS, MOST_WORKERS, WITHIN
from aspen_mp.control.wire import python
from aspen_mp.errors import AspenError, RuntimeLost

if TYPE_CHECKING:
    from aspen_mp import Model, Runtime
    from aspen_mp.cli.notify import Notifier


class LogLevel(StrEnum):
    info = "info"
    warning = "warning"
    off = "off"


@output.command
def launch(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL…", help="Models to load at the start: .onnx files or zoo:NAME.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, max=MOST_WORKERS, help="Number of workers. Default: one per usable core."),
    ] = None,
    cores: Annotated[
        str | None, typer.Option("--cores", metavar="0,2-3", help="CPUs to pin the workers to. Default: chosen by the profile.")
    ] = None,
    max_workers: Annotated[
        int | None, typer.Option("--max-workers", min=1, max=MOST_WORKERS, help="Limit for the number of workers that may join later.")
    ] = None,
    name: options.Name = "default",
    profile: Annotated[str | None, typer.Option("--profile", help="Name of a profile (default, container, hybrid) or a TOML file.")] = None,
    precision: sources.AutoPrecisionOption = None,
    samples: sources.SamplesOption = None,
    within: sources.WithinOption = WITHIN,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once everything is ready; the runtime goes on in the background.")
    ] = False,
    log: Annotated[
        LogLevel, typer.Option("--log", help="Events to write to standard error: all (info), only warnings, or none (off).")
    ] = LogLevel.info,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="[HOST:]PORT", help="Serve Prometheus metrics at this address, from a separate process."),
    ] = None,
    supervise: Annotated[
        bool, typer.Option("--supervise", help="If the planner process dies, start the runtime again with its models.")
    ] = False,
    grace: options.Grace = GRACE_S,
    preempt_ms: Annotated[
        float | None,
        typer.Option(
            "--preempt-ms", min=0.0, max=MOST_PREEMPT_MS, help="How long a tile may keep a core from a request of a higher priority, in ms."
        ),
    ] = None,
    max_queued: Annotated[
        int | None,
        typer.Option("--max-queued", min=1, help="How many requests of one client may wait. Further ones are refused with QueueFull."),
    ] = None,
    ready_fd: Annotated[int, typer.Option(hidden=True)] = -1,
    as_json: output.Json = False,
) -> None:
    """Start a runtime that other programs use, until Ctrl-C or `aspen-mp stop`.

    Python programs reach it with `aspen_mp.connect(NAME)`, and other commands with --name NAME. On SIGTERM it finishes the requests in
    flight, for at most --grace seconds. Ctrl-C and other signals end it at once. For systemd use Type=notify and KillMode=mixed;
    WatchdogSec works, too.
    """
    from aspen_mp.cli import metrics as endpoint

    cpus, rounded = options.cpus(cores), sources.auto_precision(precision, samples, within)
    if metrics is not None:
        endpoint.address(metrics)
        endpoint.need_client()
    if detach:
        for text in models or ():
            sources.exists(text)  # said here, as wrong use, not by the process in the background
        given: dict[str, object] = {
            "--workers": workers,
            "--cores": cores,
            "--max-workers": max_workers,
            "--profile": profile,
            "--metrics": metrics,
        }
        if samples is not None:
            given |= {"--samples": samples.resolve(), "--within": within}
        given |= {"--precision": precision, "--log": log.value, "--grace": grace, "--preempt-ms": preempt_ms, "--max-queued": max_queued}
        _detached(models or [], name, given, supervise=supervise, as_json=as_json)
        return
    import aspen_mp

    start = functools.partial(aspen_mp.Runtime, workers, cores=cpus, max_workers=max_workers, profile=profile, name=name, log=log.value)
    start = functools.partial(start, retry=supervise, grace_s=grace, preempt_ms=preempt_ms, max_queued=max_queued)
    _foreground(
        *(start, name, models or []),
        how=rounded,
        metrics=metrics,
        grace=grace,
        supervise=supervise,
        ready_fd=ready_fd,
        as_json=as_json,
    )


def _foreground(
    start: Callable[[], Runtime],
    name: str,
    models: list[str],
    *,
    how: dict[str, Any],
    metrics: str | None,
    grace: float,
    supervise: bool,
    ready_fd: int,
    as_json: bool,
) -> None:
    """Starts the runtime, loads the models and serves until the end. `ready_fd`: who waits for a report there."""
    from aspen_mp.cli import metrics as endpoint
    from aspen_mp.cli.notify import Notifier
    from aspen_mp.client.signature import fixed_shapes

    if ready_fd >= 0:
        os.set_inheritable(ready_fd, False)  # whoever waits for it must not wait for the runtime's processes too
    found = [sources.resolve(text) for text in models]
    notifier = Notifier()
    with start() as runtime:
        held: list[Model] = []  # a model that nobody holds is given back
        for source in found:
            with output.progress(f"loading {source.label}", quiet=as_json) as update:
                model = runtime.load(source.model, name=source.label, progress=update, **how)
                held.append(model)
                if model.precision_choice is not None:
                    output.notice(f"{source.label}: precision {model.precision_choice}")
                shapes = fixed_shapes(model.inputs)
                if shapes is not None:
                    model.prepare(shapes, update)  # no request waits yet, so there is time for a search
        stopped = _Stop()  # not before: what takes long is ended by the signals themselves
        with endpoint.beside(name, metrics) as url:
            workers = runtime.workers
            report = {
                "name": name,
                "pid": runtime.pid,
                "launcher": os.getpid(),
                "workers": [worker["cpu"] for worker in workers],
                "shared": [worker["cpu"] for worker in workers if worker["shared"]],
                "models": models,
                **({"metrics": url} if url else {}),
            }
            if ready_fd >= 0:
                with os.fdopen(ready_fd, "w") as ready:
                    json.dump(report, ready)
            else:
                _announce(report, as_json)
            notifier.ready()
            _serve(runtime, held, stopped, notifier, grace, supervise)
    if not as_json and ready_fd < 0:
        output.notice(f"runtime {name!r} has ended")


def _serve(runtime: Runtime, models: list[Model], stopped: _Stop, notifier: Notifier, grace: float, supervise: bool) -> None:
    """Until the runtime has ended, or a signal has come and what is in flight has ended. RuntimeLost where nobody asked it to end and it is
    not started again."""
    while not stopped.number:
        pid = runtime.own_pid
        runtime.wait(stopped.fd, notifier.beat_s)
        if stopped.number:
            break
        try:
            if _ended(pid):
                return
            if notifier.beat_s is not None:
                runtime.status()
                notifier.alive()
        except RuntimeLost as lost:
            if not supervise:
                raise
            notifier.status(f"starting again: {lost}")
            _revive(runtime, models)
            notifier.status("ready")
    notifier.stopping()
    if stopped.number == signal.SIGTERM:
        stopped.clear()
        runtime.drain(grace)
        runtime.wait(stopped.fd)


def _revive(runtime: Runtime, models: list[Model]) -> None:
    """Starts the runtime again, as often as it is lost meanwhile. RuntimeLost where it is lost in short order too often."""
    while True:
        try:
            runtime.revive(models)
            return
        except RuntimeLost:
            if runtime.closed:
                raise


def _ended(pid: int) -> bool:
    """Whether the planner process, our child, has ended as it was asked to. RuntimeLost where it has ended otherwise: whoever supervises us
    has to know."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return False
    if ended.si_code == os.CLD_EXITED and ended.si_status == 0:
        return True
    how = f"status {ended.si_status}" if ended.si_code == os.CLD_EXITED else signal.Signals(ended.si_status).name
    raise RuntimeLost(f"the runtime's planner process has ended with {how}. Start the runtime again, or use --supervise")


class _Stop:
    """A descriptor that becomes readable on Ctrl-C or SIGTERM, so that waiting for the runtime and for signals is one sleep. `number`: the
    signal that came last, 0 for none."""

    def __init__(self) -> None:
        self.number = 0
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
                signal.signal(number, self._caught)

    def clear(self) -> None:
        """Makes the descriptor one for the next signal."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 1 << 12)

    def _caught(self, number: int, frame: object) -> None:
        self.number = number
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"!")


def _announce(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.emit_json(report)
        return
    cpus = ", ".join(map(str, report["workers"]))
    n = output.count(len(report["workers"]), "worker")
    shared = f" (CPU {', '.join(map(str, report['shared']))} shared with another worker)" if report["shared"] else ""
    where = f"; metrics at {report['metrics']}" if "metrics" in report else ""
    output.notice(f"runtime {report['name']!r} is ready: {n} on CPU {cpus}{shared}; process {report['pid']}{where}")


def _detached(models: list[str], name: str, given: Mapping[str, object], *, supervise: bool, as_json: bool) -> None:
    """Starts the same command in a session of its own, with the options `given`, and waits until it is ready or has failed."""
    read, write = os.pipe()
    arguments = python.command("aspen_mp.cli", "launch", "--name", name, "--ready-fd", str(write), *models)
    for option, value in given.items():
        if value is not None:
            arguments += [option, str(value)]
    arguments += ["--json", *(["--supervise"] if supervise else [])]
    # Output of the runtime goes to memory that lives as long as it does: a pipe would break when this process ends.
    answer, said = (os.memfd_create(f"aspen-{what}", os.MFD_CLOEXEC) for what in ("launch-answer", "launch-log"))
    try:
        with output.progress(f"starting {name}", quiet=as_json):
            child = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=answer, stderr=said, pass_fds=[write], start_new_session=True
            )
            os.close(write)
            with os.fdopen(read) as ready:
                text = ready.read()
        if not text:
            raise _failure(child.wait(), os.pread(answer, 1 << 20, 0), os.pread(said, 1 << 20, 0))
    finally:
        os.close(answer)
        os.close(said)
    _announce(json.loads(text), as_json)


def _failure(status: int, answer: bytes, said: bytes) -> Exception:
    """Why the detached command did not start, as the error that it raised itself."""
    try:
        error = json.loads(answer)["error"]
        return getattr(errors, error["type"], AspenError)(error["message"])
    except (ValueError, KeyError, TypeError):
        return AspenError(said.decode(errors="replace").strip() or f"the runtime did not start: exit status {status}")
