"""`aspen-mp plan`: what the planner makes of a model, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aspen_mp.cli import output, sources
from aspen_mp.cli.output import mebibytes
from aspen_mp.errors import UnsupportedModelError
from aspen_mp.workers import topology

if TYPE_CHECKING:
    from aspen_mp.planner.api import StageResult

CoresOption = Annotated[
    int | None, typer.Option("--cores", min=1, help="Plan and predict for so many cores; default: those a runtime leases.")
]


@output.command
def plan(
    model: sources.ModelArgument,
    file: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE.aspen", help="Write the plan to this file.")] = None,
    cores: CoresOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="One row for each op: kernel, tiles, cost; opaque ones marked.")] = False,
    batch: sources.BatchOption = None,
    seq: sources.SeqOption = None,
    shape: sources.ShapeOption = None,
    winograd: sources.WinogradOption = None,
    as_json: output.Json = False,
) -> None:
    """Plan MODEL without running it: ops, tiles, edges, memory, predicted time."""
    from aspen_mp import __version__, config
    from aspen_mp.planner import api, cost, rates

    cost.use(rates.load(config.cache_folder(config.load(None)), __version__)[0])  # as a runtime would
    shapes = {key: sources.parse_shape(value) for key, value in sources.pairs(shape, "--shape").items()}
    source = sources.resolve(model, batch, seq)
    n = cores or topology.default_workers()
    with output.progress(f"planning {source.label}", quiet=as_json):
        opened = api.load(source.model if isinstance(source.model, str) else source.model.SerializeToString())
        bindings: dict[str, Any] = {}
        for value in opened.signature.inputs:
            if value.kind != "tensor":
                raise UnsupportedModelError(f"input {value.name!r} is a {value.kind}: such a model is planned stage by stage while it runs")
            dims = sources.bind_shape(value.name, value.shape, shapes, batch, seq)
            bindings[value.name] = api.Binding(value.dtype, dims)
        result = api.plan_stage(opened, [bindings], workers=n, options=api.Options(winograd=winograd is not False))
        if result.plan is None:
            names = ", ".join(map(repr, result.needs))
            raise UnsupportedModelError(f"the values of {names} decide shapes: such a model is planned when it runs and they are known")
        report = _report(source.label, result, n)
    if file is not None:
        from aspen_mp.planner import planfile

        planfile.save(result.plan, file)
        report["file"] = str(file)
    if as_json:
        output.emit_json(report)
    else:
        _show(report, explain)


def _report(label: str, result: StageResult, cores: int) -> dict[str, Any]:
    from dataclasses import asdict

    from aspen_mp.planner.explain import totals

    assert result.plan is not None
    why = {name: reason for name, _, reason in result.opaque}
    layers = []
    for info in result.plan.info:
        row = {**asdict(info), "tile_shape": list(info.tile_shape)}
        if info.opaque:
            row["why"] = why.get(info.name, "no kernel")
        layers.append(row)
    inputs = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in result.plan.inputs]
    outputs = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in result.plan.outputs]
    kind = {"kind": result.kind, "more_stages": result.more}
    return {"model": label, **kind, **asdict(totals(result.plan, cores)), "inputs": inputs, "outputs": outputs, "layers": layers}


def _show(report: dict[str, Any], explain: bool) -> None:
    if explain:
        rows = []
        for row in report["layers"]:
            note = f"opaque: {row['why']}" if row["opaque"] else ""
            tile = sources.describe(row["tile_shape"])
            work = f"{row['flops'] / 1e6:.2f}"
            rows.append([row["name"], row["op"], row["kernel"], row["tiles"], tile, work, f"{row['predicted_ms']:.3f}", note])
        output.table("", ["node", "op", "kernel", "tiles", "largest tile", "MFLOP", "ms", "note"], rows, right=(3, 5, 6))
        output.out.print()
    inputs = ", ".join(f"{t['name']} {t['dtype']} {sources.describe(t['shape'])}" for t in report["inputs"])
    outputs = ", ".join(f"{t['name']} {t['dtype']} {sources.describe(t['shape'])}" for t in report["outputs"])
    opaque = [row for row in report["layers"] if row["opaque"]]
    cost = sum(row["predicted_ms"] for row in opaque)
    share = 100 * cost / report["one_core_ms"] if report["one_core_ms"] else 0.0
    output.facts(
        [
            ("model", report["model"]),
            ("inputs", inputs or "none"),
            ("outputs", outputs or "none"),
            (
                "graph",
                f"{report['ops']} ops, {report['tiles']} tiles ({report['joins']} joins), {report['edges']} edges, depth {report['depth']}",
            ),
            ("work", f"{report['flops'] / 1e9:.3f} GFLOP"),
            ("memory", ", ".join(f"{part} {mebibytes(report[part + '_bytes'])}" for part in ("weights", "arena", "plan"))),
            (
                "predicted",
                f"{report['predicted_ms']:.2f} ms on {output.count(report['cores'], 'core')}, {report['one_core_ms']:.2f} ms on one",
            ),
            ("bound", f"{report['longest_path_ms']:.2f} ms: the longest path, however many cores"),
            (
                "opaque",
                f"{len(opaque)} ops through onnx.reference, {cost:.2f} ms ({share:.0f} %)" if opaque else "none: every op has a kernel",
            ),
            *([("stages", "this is the first; the next ones are planned when its results are known")] if report["more_stages"] else []),
            *([("written", report["file"])] if "file" in report else []),
        ]
    )
