"""`aspen-mp plan`: plans a model without running it, and prints the plan."""

from __future__ import annotations

import time
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from aspen_mp.cli import output, sources
from aspen_mp.cli.output import mebibytes
from aspen_mp.errors import UnsupportedModelError
from aspen_mp.shm.words import a, count
from aspen_mp.workers import topology

if TYPE_CHECKING:
    from aspen_mp.config import Profile
    from aspen_mp.planner.api import Binding, OnnxModel, StageResult
    from aspen_mp.planner.cost.machine import Machine
    from aspen_mp.planner.cost.rates import Rates
    from aspen_mp.planner.job.reasons import Reason
    from aspen_mp.planner.plan.explain import Prediction
    from aspen_mp.planner.plan.plan import Plan

CoresOption = Annotated[
    str | None,
    typer.Option(
        "--cores",
        metavar="CORES",
        help="Plan and predict for these cores. Examples: `64`, `8P+8E`, `2@1.0+2@0.5`, or `32/32`. In `count@speed`, 1.0 is the speed of "
        "a core of this machine. `/` stands between NUMA nodes. Default: the cores that a runtime would take here.",
    ),
]


@output.command
def plan(
    model: sources.ModelArgument,
    file: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE.aspen", help="Write the plan to this file.")] = None,
    cores: CoresOption = None,
    in_flight: Annotated[
        int | None,
        typer.Option(
            "--in-flight",
            min=1,
            max=64,
            help="Number of requests at a time, for the predicted throughput. Default: the instances that a runtime would have.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Print a row for each op: kernel, tiles, cost. Ops without a kernel and conversions of levels say why. Then stacks.",
        ),
    ] = False,
    why: Annotated[
        str | None,
        typer.Option(
            "--why",
            metavar="[NODE]",
            help="Print the decisions about a node of the model: what else was tried, its predicted cost, and the rule that rejected it. "
            "Without NODE, of the ten costliest.",
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Also run the tiles here, one by one, and print each op's time beside its prediction."),
    ] = False,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often --measure runs every tile.")] = 10,
    batch: sources.BatchOption = None,
    seq: sources.SeqOption = None,
    shape: sources.ShapeOption = None,
    winograd: sources.WinogradOption = None,
    accuracy: sources.AccuracyOption = None,
    precision: sources.PrecisionOption = None,
    stacks: sources.StacksOption = True,
    objective: sources.ObjectiveOption = None,
    search: sources.SearchOption = "quick",
    profile: Annotated[str | None, typer.Option("--profile", help="Name of a profile (default, container, hybrid) or a TOML file.")] = None,
    as_json: output.Json = False,
) -> None:
    """Plan MODEL without running it.

    Prints the size of the tile graph and its memory, and the predicted latency, throughput, utilisation and parallel fraction.
    """
    from aspen_mp import config
    from aspen_mp.control.planning import local_rates
    from aspen_mp.planner import api
    from aspen_mp.planner.cost import op_cost
    from aspen_mp.planner.job import reasons
    from aspen_mp.planner.job.request import instances_for
    from aspen_mp.planner.plan.explain import predict

    chosen = config.load(profile)
    measured = local_rates.predicting(config.cache_folder(chosen))
    op_cost.use(local_rates.planning()[0])  # as a runtime would
    machine, planned = machines(cores, chosen, measured)
    rounded = sources.precision(precision) or chosen.models.precision
    planning = sources.planning(search).checked(stacks=stacks)
    many = in_flight or chosen.models.instances
    if (sources.objective(objective) or chosen.models.objective) == "throughput":
        many = in_flight or instances_for("throughput", len(planned))
        planning = msgspec.structs.replace(planning, in_flight=many)
    shapes = {key: sources.parse_shape(value) for key, value in sources.pairs(shape, "--shape").items()}
    source = sources.resolve(model, batch, seq)
    with output.progress(f"planning {source.label}", quiet=as_json):
        opened = api.load(source.model if isinstance(source.model, str) else source.model.SerializeToString())
        bindings = bindings_of(opened, shapes, batch, seq)
        level = sources.accuracy(accuracy) or chosen.models.accuracy
        request = api.PlanRequest(rounded, winograd is not False, level, planning, instructions=local_rates.instructions())
        began = time.perf_counter()
        with reasons.recording(why is not None or explain) as recorded:
            result = api.plan_stage(opened, [bindings], workers=len(planned), machine=planned, request=request)
        seconds = time.perf_counter() - began
        if result.plan is None:
            names = ", ".join(map(repr, result.needs))
            raise UnsupportedModelError(
                f"the values of {names} decide shapes, so this model is planned when it runs. See its plans with aspen-mp trace"
            )
        serial = api.plan_stage(opened, [bindings], workers=1, request=request).plan if len(machine) > 1 else result.plan
        op_cost.use(measured)
        plan, alone = result.plan.predicted_anew(), serial and serial.predicted_anew()
        report = _report(source.label, result, plan, predict(plan, machine, serial=alone, in_flight=many), recorded)
        report |= {"planning_s": seconds, "search": result.plan.metadata.get("search")}
        report["shared"] = result.plan.metadata.get("shared")
    if why is not None:
        report["why"] = _why(plan, recorded, opened, why)
    if file is not None:
        from aspen_mp.planner.plan import plan_file

        plan_file.save(result.plan, file)
        report["file"] = str(file)
    if measure:
        with output.progress(f"measuring {source.label}", quiet=as_json):
            report["measured"] = _measure(plan, source, report["layers"], rounds, batch=batch, seq=seq)
    if as_json:
        output.emit_json(report)
    else:
        if why is not None:
            _show_reasons(report["why"])
        _show(report, explain or measure)


def _why(plan: Plan, recorded: list[Reason], model: OnnxModel, node: str) -> dict[str, Any]:
    """The reasons for a plan, as plain values. `node`: which is asked for; "": the costliest."""
    from aspen_mp.planner.plan.why import UnknownNode, explained

    names = [proto.name or next(filter(None, proto.output), "") for proto in model.proto.graph.node]
    try:
        found: dict[str, Any] = msgspec.to_builtins(explained(plan.info, recorded, names, node), enc_hook=float)
    except UnknownNode as error:
        raise typer.BadParameter(str(error), param_hint="--why") from None
    return found


def _show_reasons(why: dict[str, Any]) -> None:
    """A table for each node, and one for the whole network."""
    for node in why["nodes"]:
        took = "no op" if node["predicted_ms"] is None else f"{', '.join(node['kernels'])}, {node['predicted_ms']:.3f} ms on one core"
        _reasons_table(f"{' + '.join(node['nodes'])}: {took}", node["reasons"])
    _reasons_table("the whole network", why["network"])


def _reasons_table(title: str, reasons: list[dict[str, Any]]) -> None:
    def ms(cost: float | None) -> str:
        return "" if cost is None else f"{cost:.4f}"

    rows = []
    for reason in reasons:
        choice = f"{reason['op']}: {reason['choice']}" if reason["op"] else reason["choice"]
        rows.append([reason["decision"], choice, ms(reason["ms"]), reason["measure"], reason["rule"]])
        rows += [["", f"not {other['choice']}", ms(other["ms"]), "", other["rule"]] for other in reason["tried"]]
    output.table(title, ["decision", "choice", "ms", "of", "because"], rows, right=(2,))
    output.out.print()


def bindings_of(model: OnnxModel, shapes: dict[str, tuple[int, ...]], batch: int | None, seq: int | None) -> dict[str, Binding]:
    """A shape for every input."""
    from aspen_mp.planner import api

    bound: dict[str, Binding] = {}
    for value in model.signature.inputs:
        if value.kind != "tensor":
            raise UnsupportedModelError(
                f"input {value.name!r} is {a(value.kind)}, so this model is planned when it runs. See its plans with aspen-mp trace"
            )
        bound[value.name] = api.Binding(value.dtype, sources.bind_shape(value.name, value.shape, shapes, batch, seq))
    return bound


def machines(cores: str | None, profile: Profile, measured: Rates) -> tuple[Machine, Machine]:
    """Return the machine to predict for, with measured rates, and the one to plan for. They have the cores of --cores, or those that a
    runtime of this profile leases here, and what it knows of them when it plans."""
    from aspen_mp.planner.cost import op_cost
    from aspen_mp.planner.cost.machine import Core, Machine

    rates = op_cost.rates()
    workers = profile.workers
    if cores is not None:
        try:
            speeds = {"P": 1.0, "E": workers.efficiency_speed, "L": workers.low_power_speed}
            return Machine.parse(cores, measured, speeds), Machine.parse(cores, rates, speeds)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--cores") from None
    there = topology.read()
    count = None if workers.count == "auto" else workers.count
    cpus = there.select(count, None if workers.cores == "auto" else workers.cores, classes=workers.classes, smt=workers.smt)
    leased = [there.by_cpu[cpu] for cpu in cpus]
    known = [Core(core.speed, core.rank, core.l3, core.node) for core in leased]
    return Machine.of(known, measured), Machine.of_speeds(there.speeds(cpus), rates)


def _report(label: str, result: StageResult, plan: Plan, prediction: Prediction, recorded: list[Reason]) -> dict[str, Any]:
    """Everything that is printed. `recorded`: reasons, where somebody asked for them: of ops between levels and f32, a row's `why`."""
    from dataclasses import asdict

    from aspen_mp.planner.passes.precision.round_trips import CHOICE
    from aspen_mp.planner.plan.explain import totals

    why = {name: reason for name, _, reason in result.opaque}
    between = {reason.node: reason.rule for reason in recorded if reason.choice == CHOICE}
    layers = []
    for info in plan.info:
        row = {**asdict(info), "tile_shape": list(info.tile_shape)}
        if info.opaque:
            row["why"] = why.get(info.name, "no kernel computes it")
        elif info.name in between:
            row["why"] = between[info.name]
        if info.stack is None:
            del row["stack"]
        layers.append(row)
    inputs = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in plan.inputs]
    outputs = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in plan.outputs]
    kind = {"kind": result.kind, "more_stages": result.more}
    found = {**asdict(totals(plan)), **asdict(prediction)}
    return {"model": label, **kind, **found, "inputs": inputs, "outputs": outputs, "layers": layers}


def _planned(report: dict[str, Any]) -> str:
    found, shared = report["search"], report["shared"]
    took = f"in {report['planning_s']:.2f} s"
    if shared is not None:
        took += f"; for {shared['in_flight']} requests at a time, each shared by {count(shared['cores'], 'core')}"
    if found is None:
        return took
    gain = f"{found['start_ms']:.2f} to {found['best_ms']:.2f} ms simulated"
    first = "; critical path first" if found["order"] == "critical path" else ""
    return f"{took}; tiles searched: {gain}, {found['steps']} steps, {found['simulated'] / 1e6:.2f} million tiles simulated{first}"


def _measure(
    plan: Plan, source: sources.GivenModel, layers: list[dict[str, Any]], rounds: int, *, batch: int | None, seq: int | None
) -> dict[str, Any]:
    """Times every op on random inputs: adds `measured_ms` (median), `measured_min_ms`, `gflops` and `gbytes_per_s` to the layers' rows."""
    from aspen_mp.tools.measure import profile

    found = profile(plan, _inputs(plan, source, batch, seq), rounds=rounds)
    for row, op in zip(layers, found.ops, strict=True):
        ns = max(op.median_ns, 1.0)
        row |= {"measured_ms": op.median_ns * 1e-6, "measured_min_ms": op.min_ns * 1e-6}
        row |= {"gflops": row["flops"] / ns, "gbytes_per_s": row["bytes"] / ns}
    return {"one_core_ms": found.median_ns * 1e-6, "min_ms": found.min_ns * 1e-6, "rounds": rounds}


def _inputs(plan: Plan, source: sources.GivenModel, batch: int | None, seq: int | None) -> dict[str, Any]:
    import numpy as np

    from aspen_mp.shm import values

    made: dict[str, Any] = {}
    if source.collection is not None:
        made = source.collection.inputs(source.proto(), batch=batch or 1, seq=seq or 128)
    limits = source.index_limits()
    rng = np.random.default_rng(0)
    feeds = {}
    for info in plan.inputs:
        known = made.get(info.name)
        if known is not None and known.shape == tuple(info.shape):
            feeds[info.name] = known
        else:
            dtype = values.dtype_by_name(info.dtype)
            feeds[info.name] = sources.random_array(info.name, dtype, tuple(info.shape), limits.get(info.name), rng)
    return feeds


def _show(report: dict[str, Any], explain: bool) -> None:
    if explain:
        rows = []
        for row in _by_layer(report["layers"]):
            slices = f"{row['batch_slice'][1]} slices of the batch" if row["batch_slice"][1] > 1 else ""
            note = f"opaque, one tile: {row['why']}" if row["opaque"] else slices or row.get("why", "")
            tile = sources.describe(row["tile_shape"])
            work = f"{row['flops'] / 1e6:.2f}"
            moved = f"{row['bytes'] / 1e6:.2f}"
            times = [f"{row['predicted_ms']:.3f}"]
            if "measured_ms" in row:
                times += [f"{row['measured_ms']:.3f}", f"{row['gflops']:.1f}"]
            rows.append([row["name"], row["op"], row["kernel"], row["tiles"], tile, work, moved, *times, note])
        measured = ["measured", "GFLOP/s"] if "measured" in report else []
        columns = ["node", "op", "kernel", "tiles", "largest tile", "MFLOP", "MB", "predicted ms" if measured else "ms", *measured, "note"]
        output.table("", columns, rows, right=(3, 5, 6, 7, *(8 + k for k in range(len(measured)))))
        output.out.print()
        _show_stacks(report["layers"])
    inputs = ", ".join(f"{t['name']} {t['dtype']} {sources.describe(t['shape'])}" for t in report["inputs"])
    outputs = ", ".join(f"{t['name']} {t['dtype']} {sources.describe(t['shape'])}" for t in report["outputs"])
    opaque = [row for row in report["layers"] if row["opaque"]]
    by_reference = sum(row["predicted_ms"] for row in opaque)
    share = 100 * by_reference / report["one_core_ms"] if report["one_core_ms"] else 0.0
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
            ("planned", _planned(report)),
            ("memory", ", ".join(f"{part} {mebibytes(report[part + '_bytes'])}" for part in ("weights", "arena", "plan"))),
            ("predicted", _latency(report)),
            ("throughput", f"{report['requests_per_s']:.1f} requests/s, {output.count(report['in_flight'], 'request')} at a time"),
            *([("parallel", _parallel(report))] if report["cores"] > 1 else []),
            *([("measured", _measured_line(report["measured"]))] if "measured" in report else []),
            ("bound", f"{report['longest_path_ms']:.2f} ms: the longest path, however many cores"),
            (
                "opaque",
                f"{len(opaque)} ops through onnx.reference, {by_reference:.2f} ms ({share:.0f} %)"
                if opaque
                else "none: every op has a kernel",
            ),
            *([("stages", "this is the first; the next ones are planned when its results are known")] if report["more_stages"] else []),
            *([("written", report["file"])] if "file" in report else []),
        ]
    )


def _show_stacks(layers: list[dict[str, Any]]) -> None:
    """Shows the layers that run depth first: a row for each sequence of a stack."""
    rows = []
    for row in _by_layer(layers):
        if "stack" not in row:
            continue
        found = row["stack"]
        runs = [(kernel, len(list(run))) for kernel, run in groupby(step["kernel"] for step in found["steps"])]
        steps = ", ".join(f"{n} {kernel}" if n > 1 else kernel for kernel, n in runs)
        times = f"{found['apart_ms']:.3f}", f"{found['together_ms']:.3f}"
        gain = f"{1 - found['together_ms'] / found['apart_ms']:.0%}"
        rows.append([found["number"] + 1, row["name"], steps, f"{found['saved_bytes'] / 1e6:.2f}", *times, gain])
    if rows:
        columns = ["stack", "sequence", "steps", "MB not written", "ms layer by layer", "ms", "gain"]
        output.table("", columns, rows, right=(0, 3, 4, 5, 6))
        output.out.print()


def _by_layer(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for all slices of the batch that an op is executed for one after the other."""
    out: list[dict[str, Any]] = []
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    alike: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        k, n = row["batch_slice"]
        kind = (row["name"], row["op"], row["kernel"], n)
        key = (*kind, alike[*kind, k])
        alike[*kind, k] += 1
        if k == 0:
            first[key] = {**row, "stack": {**row["stack"]}} if "stack" in row else {**row}
            out.append(first[key])
            continue
        whole = first[key]
        for name in ("tiles", "flops", "bytes", "predicted_ms", "measured_ms", "measured_min_ms"):
            if name in row:
                whole[name] += row[name]
        for name in ("saved_bytes", "apart_ms", "together_ms") if "stack" in row else ():
            whole["stack"][name] += row["stack"][name]
        if "measured_ms" in row:
            ns = max(whole["measured_ms"] * 1e6, 1.0)
            whole |= {"gflops": whole["flops"] / ns, "gbytes_per_s": whole["bytes"] / ns}
    return out


def _latency(report: dict[str, Any]) -> str:
    on = "1 core" if report["machine"] == "1" else f"cores {report['machine']}" if "@" in report["machine"] else f"{report['cores']} cores"
    alone = f", {report['serial_ms']:.2f} ms on the fastest alone" if report["cores"] > 1 else ""
    return f"{report['predicted_ms']:.2f} ms on {on}{alone}; {100 * report['utilisation']:.0f} % of the time in kernels"


def _parallel(report: dict[str, Any]) -> str:
    return (
        f"{report['speedup']:.2f} times as fast as one core, of {report['power']:.3g}; parallel fraction {report['parallel_fraction']:.4f}"
    )


def _measured_line(measured: dict[str, Any]) -> str:
    return (
        f"{measured['one_core_ms']:.2f} ms on one core, tile after tile; least {measured['min_ms']:.2f} ms of {measured['rounds']} rounds"
    )
