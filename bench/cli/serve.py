"""`aspen-mp bench serve`: a server under load, beside onnxruntime behind the same server code and in other servers."""

from __future__ import annotations

import importlib.util
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from aspen_mp.bench.cli import findings, options
from aspen_mp.bench.cli.benchmark import Run, benchmark
from aspen_mp.cli import output


class Objective(StrEnum):
    """The objectives of `Runtime.load`."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"


@benchmark()
def serve(
    run: Run,
    network: options.Network = "mobilenet_v2",
    transports: Annotated[
        str, typer.Option("--transports", metavar="A,B", help="Some of http, unix (tensors as bytes), memory (shared), json, grpc.")
    ] = "http,unix,json,grpc",
    clients: Annotated[str, typer.Option("--clients", metavar="1,16", help="Clients that each wait for their answer.")] = "1,4,16,64",
    rates: Annotated[
        str | None, typer.Option("--rates", metavar="50,100", help="Also these numbers of requests a second, at random moments.")
    ] = None,
    http_workers: Annotated[int, typer.Option("--http-workers", min=1, help="Processes that answer for the runtime.")] = 1,
    sessions: Annotated[
        str, typer.Option("--sessions", metavar="1,4", help="Numbers of processes with a session of onnxruntime each.")
    ] = "1,2",
    objective: Annotated[Objective, typer.Option("--objective", help="Aim of the runtime's plans.")] = Objective.LATENCY,
    profile: Annotated[
        Path | None, typer.Option("--profile", exists=True, dir_okay=False, help="Profile of the server's runtime, a TOML file.")
    ] = None,
    cores: options.Cpus = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Length of each setting in each round, in seconds.")] = 3.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of rounds.")] = 5,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Also measure onnxruntime, BentoML, MLServer, if installed.")] = True,
) -> None:
    """Measure a server: answers per second, latencies, the time that it adds to a request, and memory.

    Beside it, onnxruntime behind the same server code, and in BentoML and MLServer. Needs the extra `serve`; gRPC needs the extra `grpc`.
    """
    from aspen_mp.bench.serve import measure, picture, requests

    ways = tuple(transports.split(","))
    if unknown := [each for each in ways if each not in requests.TRANSPORTS]:
        raise typer.BadParameter(f"{unknown[0]!r} is unknown. Give some of {', '.join(requests.TRANSPORTS)}", param_hint="--transports")
    if missing := requests.lacking(ways):
        extras = "serve,grpc" if "grpc" in ways else "serve"
        raise typer.BadParameter(
            f"{', '.join(missing)} is not installed. Install it with: pip install 'aspen-mp[{extras}]'", param_hint="bench serve"
        )
    (case,) = options.cases([network])
    (cpus,) = options.core_sets(None, cores)
    there = peers and importlib.util.find_spec("onnxruntime") is not None
    closed = options.counts(clients, "--clients")
    loads: list[tuple[int, float | None]] = [(count, None) for count in closed]
    loads += [(max(closed), rate) for rate in (options.floats(rates, "--rates") if rates else [])]
    numbers = options.counts(sessions, "--sessions") if there else []
    with run.saying() as say:
        found = measure.measure(case, cpus, ways, loads, http_workers, numbers, seconds, rounds, objective.value, profile, say)
    run.draw(picture.plot, found)
    rows = []
    for each in found.served:
        added, beside = found.added_ms(each), found.beside(each) if each.setting.engine == "aspen-mp" else None
        of_map = found.of_map(each)
        rows.append(
            [
                *(each.setting.transport, each.setting.load, each.setting.engine, f"{median(each.per_s):.1f}"),
                *(f"{median(values):.2f}" for values in (each.p50_ms, each.p99_ms, each.p999_ms)),
                *("" if added is None else f"{added:.2f}", "" if beside is None else f"{beside[0]:.2f}"),
                *("" if beside is None else f"{beside[1]:.2f}", "" if of_map is None else f"{of_map:.3f}", each.failed or ""),
            ]
        )
    columns = ["transport", "load", "engine", "answers/s", "p50 ms", "p99 ms", "p99.9 ms", "added ms", "of best peer's", "of its p99"]
    columns += ["of map's", "failed"]
    memory = ", ".join(f"{engine} {output.mebibytes(nbytes)}" for engine, nbytes in found.pss_bytes.items())
    failed = {f"{each.setting.engine}, {each.setting.transport}": each.why for each in found.served if each.failed}
    run.end(found, [findings.Shown(found.case, columns, rows, found.verdict, f"Memory of all processes: {memory}.", failed)])
