"""Tables of services: servers under load, and actors of Ray on one node."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from aspen_mp.bench.ray.result import RayResult
from aspen_mp.bench.render.markdown import number, table
from aspen_mp.bench.render.published import Published
from aspen_mp.bench.serve.result import Served, ServeResult

INTRODUCTION = (
    "Requests come from processes of their own, on the cores that the server or the actors have, too. `onnxruntime` answers behind the "
    "same server code, or in actors that are called alike, with a thread for each core. `BentoML with onnxruntime` and `MLServer with "
    "onnxruntime` are servers of their own, with sessions of the same options. Of each server the table shows the number of processes "
    "with the most answers. The record has all."
)
"""The text above the tables."""
MIB = 1 << 20


def _fastest(served: Iterable[Served]) -> list[Served]:
    """Return the variant of each server with the most answers per second, for each load."""
    found: dict[tuple[str, str, str], Served] = {}
    for one in served:
        key = (one.setting.transport, one.setting.load, one.setting.engine.partition(",")[0])
        if key not in found or median(one.per_s) > median(found[key].per_s):
            found[key] = one
    return list(found.values())


def serve(item: Published) -> str:
    """Each load of each server; then memory."""
    result: ServeResult = item.record.result
    rows = []
    for served in _fastest(result.served):
        own, added, beside = served.setting, result.added_ms(served), result.beside(served)
        ours = own.engine == "aspen-mp"
        rows.append(
            [
                f"{own.transport}, {own.load}",
                own.engine,
                *(number(median(values)) for values in (served.per_s, served.p50_ms, served.p99_ms)),
                "–" if added is None else number(added),
                *([f"{part:.2f}" for part in beside] if ours and beside is not None else ["–", "–"]),
            ]
        )
    columns = ["load", "engine", "answers/s", "p50, ms", "p99, ms", "added, ms", "of the best other's answers/s", "of its p99"]
    text = f"{result.case}. Added is the median latency of one client, less that of `Model.run` on the server's runtime."
    memory = "; ".join(f"{engine} {nbytes / MIB:.0f} MiB" for engine, nbytes in result.pss_bytes.items())
    return f"{text}\n\n{table(columns, rows)}\n\nMemory of all processes: {memory}."


def ray(item: Published) -> str:
    """Rows a second, CPU time and memory, by engine and number of actors."""
    result: RayResult = item.record.result
    rows = [
        [
            f"{found.engine}, {found.actors}",
            number(median(found.per_s)),
            f"{result.ratio(found):.2f}",
            number(median(found.cpu_ms_per_row)),
            f"{found.pss_bytes / MIB:.0f}",
            f"{found.weights_pss_bytes / MIB:.1f}" if found.weights_pss_bytes else "–",
        ]
        for found in result.found
    ]
    columns = ["engine, actors", "rows/s", "of a client's without Ray", "CPU time a row, ms", "memory, MiB", "of it packed weights"]
    return f"{result.case}.\n\n{table(columns, rows)}"
