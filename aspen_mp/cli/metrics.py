"""`aspen-mp metrics`: a runtime's counters for Prometheus, from a process of its own; and `launch --metrics`, which starts one."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from aspen_mp.cli import options, output
from aspen_mp.control.wire import python
from aspen_mp.errors import AspenError

DEFAULT = "127.0.0.1:9464"
END_S = 5.0
"""How long the process that serves may take to end when it is told to; then it is killed."""


@output.command
def metrics(
    name: options.Running = "",
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="[HOST:]PORT", help="Address at which /metrics is served. Port 0 means any free port.")
    ] = DEFAULT,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once, in the text format of Prometheus, and exit.")] = False,
    parent: Annotated[int, typer.Option(hidden=True)] = 0,
    ready_fd: Annotated[int, typer.Option(hidden=True)] = -1,
    as_json: output.Json = False,
) -> None:
    """Serve the counters of a runtime to Prometheus, until Ctrl-C.

    The runtime may end and start again meanwhile: the metric aspen_mp_up says whether it is there. Needs the package prometheus-client.
    """
    need_client()
    host, port = address(listen)
    if once:
        import aspen_mp
        from aspen_mp.tools.metrics import text

        with aspen_mp.connect(name, retry=False) as runtime:
            exposition = text(runtime.status())
        if as_json:
            output.emit_json({"text": exposition})
        else:
            sys.stdout.write(exposition)
        return
    from aspen_mp.tools.metrics import Endpoint
    from aspen_mp.workers import process

    if parent:
        process.die_with(parent)
    caught, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, lambda *_: os.write(write, b"!"))
    endpoint = Endpoint(name, host, port)
    try:
        url = f"http://{host}:{endpoint.port}/metrics"
        if ready_fd >= 0:
            with os.fdopen(ready_fd, "w") as ready:
                json.dump({"url": url}, ready)
        elif as_json:
            output.emit_json({"url": url})
            sys.stdout.flush()
        else:
            output.notice(f"metrics of runtime {name!r} are at {url}")
        select.select([caught], [], [])
    finally:
        endpoint.close()


def need_client() -> None:
    if importlib.util.find_spec("prometheus_client") is None:
        raise AspenError("metrics need the package prometheus-client. Install it with: pip install prometheus-client")


def address(listen: str) -> tuple[str, int]:
    """Host (127.0.0.1 unless it says another) and port. typer.BadParameter for anything else."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise typer.BadParameter(f"{listen!r} is not an address. Write it like 9464 or 0.0.0.0:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextlib.contextmanager
def beside(name: str, listen: str | None) -> Iterator[str]:
    """Serves the metrics of a runtime from a child process until the end of the block, or of this process; its URL, empty without
    `listen`. AspenError if it cannot."""
    if listen is None:
        yield ""
        return
    need_client()
    read, write = os.pipe()
    command = python.command("aspen_mp.cli", "metrics", "--name", name, "--listen", listen)
    command += ["--parent", str(os.getpid()), "--ready-fd", str(write), "--json"]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=[write], process_group=0)
    try:
        os.close(write)
        with os.fdopen(read) as ready:
            said = ready.read()
        if not said:
            answer, _ = child.communicate()
            try:
                why = json.loads(answer)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                why = f"exit status {child.returncode}"
            raise AspenError(f"metrics cannot be served at {listen}: {why}")
        yield json.loads(said)["url"]
    finally:
        child.terminate()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()
