"""`aspen-mp serve`: models over HTTP and gRPC, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import math
import os
import re
import socket
import stat
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aspen_mp.cli import options, output, sources
from aspen_mp.cli.options import GRACE_S
from aspen_mp.errors import AspenError

if TYPE_CHECKING:
    from aspen_mp import Runtime
    from aspen_mp.serving.repository.disk import Found
    from aspen_mp.serving.supervisor import ServeOptions

NEEDED = ("starlette", "uvicorn", "httptools", "uvloop", "simdjson", "orjson")
NEEDED_FOR_GRPC = ("grpc", "google.protobuf", "grpc_health")
NEEDED_FOR_OTEL = ("opentelemetry.sdk",)


class MetricNames(StrEnum):
    """Styles of metrics' names."""

    OURS = "aspen-mp"
    TRITON = "triton"


@output.command
def serve(
    models: Annotated[list[str], typer.Argument(metavar="MODEL_OR_REPOSITORY…", help="Repositories (folders), .onnx files or zoo:NAME.")],
    host: Annotated[str, typer.Option("--host", help="Address to listen at. 0.0.0.0: all of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen at. 0: any free one.")] = 8000,
    grpc_port: Annotated[
        int | None, typer.Option("--grpc-port", min=0, max=65535, help="Answer gRPC at this port, too. 0: any free one.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, max=65535, help="Serve /metrics at this port, too, from a process of its own.")
    ] = None,
    metrics_names: Annotated[
        MetricNames, typer.Option("--metrics-names", help="Names of metrics at /metrics; triton: its nv_inference_… as well.")
    ] = MetricNames.OURS,
    unix_socket: Annotated[Path | None, typer.Option("--unix-socket", help="Listen at this path as well.")] = None,
    allow_named_shm: Annotated[
        str | None, typer.Option("--allow-named-shm", metavar="PREFIX", help="Let clients register files of /dev/shm with such names.")
    ] = None,
    http_workers: Annotated[int, typer.Option("--http-workers", min=1, max=256, help="Processes that answer requests.")] = 1,
    name: Annotated[
        str | None, typer.Option("--name", callback=options.named, help="Use the runtime of this name, instead of one of its own.")
    ] = None,
    workers: options.Workers = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow changes of the repositories: new versions take over.")] = False,
    allow_repository: Annotated[bool, typer.Option("--allow-repository", help="Let clients load and unload models.")] = False,
    access_log: Annotated[bool, typer.Option("--access-log", help="Write a line of JSON to standard error for each request.")] = False,
    otel: Annotated[bool, typer.Option("--otel", help="Trace requests for OpenTelemetry, as OTEL_… in the environment say.")] = False,
    max_body: Annotated[int, typer.Option("--max-body", metavar="MIB", min=1, help="Largest body of a request.")] = 256,
    max_queued: Annotated[
        int, typer.Option("--max-queued", min=0, help="Requests of one process that may wait; more get status 429. 0: no limit.")
    ] = 1024,
    max_sequences: Annotated[
        int, typer.Option("--max-sequences", min=0, max=1 << 20, help="Sequences (streams of frames) that one process keeps. 0: none.")
    ] = 64,
    client_sequences: Annotated[
        int, typer.Option("--client-sequences", min=0, max=1 << 20, help="Sequences of one client's address.")
    ] = 16,
    sequence_timeout: Annotated[
        float, typer.Option("--sequence-timeout", metavar="SECONDS", min=0.001, max=1e9, help="How long sequences live without a request.")
    ] = 60.0,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="Answer only clients that send a token of this file, one a line, as bearer token.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option("--certificate", help="Speak TLS with this certificate (PEM); needs --key.")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="The private key of the certificate (PEM).")] = None,
    grace: options.Grace = GRACE_S,
    drain: Annotated[
        float, typer.Option("--drain", metavar="SECONDS", min=0, help="How long to answer after readiness is false, at the end.")
    ] = 0.0,
    as_json: output.Json = False,
) -> None:
    """Answer the Open Inference Protocol over HTTP and gRPC, until Ctrl-C or SIGTERM.

    A repository is a folder with NAME/VERSION/model.onnx for each model. On SIGTERM, readiness becomes false, requests in flight end, and
    the exit status is 0. Needs the extra `serve`; gRPC needs the extra `grpc`.
    """
    _need("serve", NEEDED)
    if grpc_port is not None:
        _need("grpc", NEEDED_FOR_GRPC)
    if otel:
        _need_exporters()
    if name is not None and workers is not None:
        raise typer.BadParameter("a runtime that runs has its workers. Leave it out, or --name", param_hint="--workers")
    from aspen_mp.cli import metrics as endpoint
    from aspen_mp.serving.access import strangers, tokens
    from aspen_mp.serving.limits import Limits
    from aspen_mp.serving.supervisor import ServeOptions

    _check_tls(certificate, key)
    if allow_named_shm is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", allow_named_shm):
        raise typer.BadParameter("give letters, digits, '.', '_' and '-' that names must begin with", param_hint="--allow-named-shm")
    told = ServeOptions(
        front_ends=http_workers,
        limits=Limits(
            body=max_body << 20,
            queued=max_queued,
            sequences=max_sequences,
            client_sequences=client_sequences,
            sequence_s=sequence_timeout,
        ),
        watch=watch,
        allow_repository=allow_repository,
        access_log=access_log,
        grace_s=grace,
        drain_s=drain,
        triton_names=metrics_names is MetricNames.TRITON,
        named=allow_named_shm,
        tokens=[] if token_file is None else tokens.digests(token_file),
        otel=otel,
        certificate=None if certificate is None else str(certificate.resolve()),
        key=None if key is None else str(key.resolve()),
    )
    with contextlib.ExitStack() as stack:
        repositories, files = _found(models, stack)
        listening = stack.enter_context(_listening(host, port))
        strangers.warn(listening.getsockname()[0], token_file, tls=certificate is not None)
        at = [f"{'http' if certificate is None else 'https'}://{host if ':' not in host else f'[{host}]'}:{listening.getsockname()[1]}"]
        sockets = [listening]
        if unix_socket is not None:
            sockets.append(stack.enter_context(_listening_at(unix_socket)))
            at.append(f"unix:{unix_socket}")
        if grpc_port is not None:
            told.grpc = stack.enter_context(_grpc(host, grpc_port))
            at.append(f"grpc://{told.grpc}")
        runtime = stack.enter_context(_runtime(name, workers))
        metrics = stack.enter_context(endpoint.beside(runtime.name, None if metrics_port is None else f"{host}:{metrics_port}"))
        _run(runtime, repositories, files, told, sockets, {"at": at, **({"metrics": metrics} if metrics else {})}, as_json)


def _need(extra: str, packages: tuple[str, ...]) -> None:
    """AspenError unless the packages of an extra are installed."""
    missing = [each for each in packages if not _is_there(each)]
    if missing:
        raise AspenError(f"serve needs the packages {', '.join(missing)}. Install them with: pip install 'aspen-mp[{extra}]'")


def _need_exporters() -> None:
    """AspenError unless traces can be exported as the environment says."""
    _need("otel", NEEDED_FOR_OTEL)
    from aspen_mp.serving.telemetry import traces

    traces.exporters()


def _check_tls(certificate: Path | None, key: Path | None) -> None:
    """Files of TLS that do not fit are found here, not in each front end."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise typer.BadParameter("a certificate needs its key. Give both --certificate and --key")
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, "")
    except OSError as error:  # ssl.SSLError is one
        raise AspenError(f"{certificate} and {key} are not a certificate in PEM and its unencrypted key: {error}") from None


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of a package within one that is missing
        return False


def _run(
    runtime: Runtime,
    repositories: list[Path],
    files: list[Found],
    told: ServeOptions,
    sockets: list[socket.socket],
    report: dict[str, object],
    as_json: bool,
) -> None:
    """Serves, and says when it does."""
    from aspen_mp.cli.notify import Notifier
    from aspen_mp.serving.keeper import Keeper
    from aspen_mp.serving.supervisor import Supervisor

    notifier = Notifier()
    keeper = Keeper(runtime, repositories, files)

    def ready() -> None:
        bad = [each for each in keeper.unserved if each.name in {file.name for file in files}]
        if bad:
            raise AspenError(f"model {bad[0].name!r} cannot be served: {bad[0].reason}")
        names = sorted({each.name for each in keeper.served})
        if as_json:
            output.emit_json({**report, "runtime": runtime.name, "pid": os.getpid(), "models": names})
        else:
            output.notice(f"{output.count(len(names), 'model')} ({', '.join(names) or 'none'}) served at {', '.join(report['at'])}")  # type: ignore[arg-type]
        notifier.ready()

    supervisor = Supervisor(runtime, keeper, told, sockets, repositories)
    asyncio.run(supervisor.run(ready, notifier.stopping))


@contextlib.contextmanager
def _grpc(host: str, port: int) -> Iterator[str]:
    """The address of gRPC, held for front ends."""
    from aspen_mp.serving.grpc.listener import reserved

    with reserved(host, port) as address:
        yield address


def _runtime(name: str | None, workers: int | None) -> Runtime:
    """The runtime of this name, or one of the server's own, which front ends find by a name that no other has."""
    import aspen_mp

    if name is not None:
        return aspen_mp.connect(name, wait_s=math.inf)  # a server outlives the runtime that it serves from
    return aspen_mp.Runtime(workers, name=f"serve-{os.getpid()}", retry=True, log="warning")


def _found(models: list[str], stack: contextlib.ExitStack) -> tuple[list[Path], list[Found]]:
    """Repositories, and models by themselves. Those without a file get one until `stack` ends: every front end reads it."""
    import onnx

    from aspen_mp.serving.repository import disk, scratch

    scratch.clean()
    drafts: Path | None = None
    repositories: list[Path] = []
    files: dict[str, Found] = {}
    for text in models:
        if Path(text).is_dir():
            repositories.append(Path(text).resolve())
            continue
        source = sources.resolve(text)
        label = Path(source.label).stem if isinstance(source.model, str) else source.label.removeprefix("zoo:")
        if why := disk.unfit(label):
            raise typer.BadParameter(f"{label!r} cannot be the name of a model: {why}")
        if label in files:
            raise typer.BadParameter(f"two models have the name {label!r}. Put them into a repository under other names")
        if isinstance(source.model, str):
            path = Path(source.model)
        else:
            drafts = drafts or stack.enter_context(scratch.folder())
            path = drafts / f"{label}.onnx"
            onnx.save(source.model, path)
        files[label] = disk.single(label, path)
    return repositories, list(files.values())


def _listening(host: str, port: int) -> socket.socket:
    """One socket for all front ends. OSError names the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen at {host}:{port}: {error.strerror or error}. Choose another --port") from None


@contextlib.contextmanager
def _listening_at(path: Path) -> Iterator[socket.socket]:
    """A Unix socket at this path, which is gone at the end. One that a dead server has left is replaced; any other file is not."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise AspenError(f"{path} is there already, and is not a socket. Choose another --unix-socket")
        with socket.socket(socket.AF_UNIX) as trial:
            try:
                trial.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
            else:
                raise AspenError(f"another server listens at {path}. Choose another --unix-socket")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        try:
            sock.listen(2048)
            yield sock
        finally:
            if sock.fileno() >= 0:  # otherwise the server has ended it, and the path may be another's by now
                path.unlink(missing_ok=True)
